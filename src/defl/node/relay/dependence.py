"""Which members need relays, and what is left if the relays are gone."""

from dataclasses import dataclass
from itertools import combinations

from defl.cards import Card, Reach
from defl.committee import Federation


@dataclass(frozen=True, slots=True)
class RelayDependence:
    members: int
    quorum: int
    dialling: tuple[str, ...]  # members that only dial
    relays: tuple[str, ...]
    relaying_members: int

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Who meets at a relay."""
        return tuple(combinations(self.dialling, 2))

    @property
    def connected_without(self) -> int:
        """The most members that are all connected with each other when no relay runs: those that
        can be dialled, but for a member that was the relay, and one that only dials."""
        public = self.members - len(self.dialling)
        gone = self.relaying_members if len(self.relays) == 1 else 0
        return public - gone + min(1, len(self.dialling))

    @property
    def json(self) -> dict[str, object]:
        return {
            "only_dial": list(self.dialling),
            "relays": list(self.relays),
            "pairs": [list(pair) for pair in self.pairs],
            "connected_without_relays": self.connected_without,
            "quorum_without_relays": self.connected_without >= self.quorum,
        }

    @property
    def lines(self) -> list[str]:
        """For people; nothing if every pair is connected without a relay."""
        if not self.pairs:
            return []
        meet = f"{_count(len(self.pairs), 'pair')} of members that only dial"
        verdict = "a quorum" if self.connected_without >= self.quorum else "no quorum"
        left = (
            f"{self.connected_without} of {self.members} members are all connected with each "
            f"other, {verdict} (q = {self.quorum})"
        )
        match self.relays:
            case ():
                return [f"none, but {meet} cannot be connected without one", f"as it is, {left}"]
            case (relay,):
                return [
                    f"{relay}, which connects {meet}",
                    "it is the only one: it can stop these pairs, never read or change anything",
                    f"without it {left}",
                ]
        return [
            f"{', '.join(self.relays)}, which connect {meet}",
            "each pair uses any one of them, so one may fail",
            f"without all of them {left}",
        ]


def relay_dependence(facts: Federation, relays: tuple[Card, ...]) -> RelayDependence:
    members = [facts.members[id_] for id_ in facts.committee.members]
    relaying = [member.name for member in members if member.relay]
    return RelayDependence(
        members=len(members),
        quorum=facts.committee.quorum,
        dialling=tuple(member.name for member in members if member.reach is Reach.DIAL),
        relays=(*(card.name for card in relays), *relaying),
        relaying_members=len(relaying),
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
