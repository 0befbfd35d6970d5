"""Pending changes of the membership in words: what they do, and what they still lack.

`succession.py` decides; nothing here does. The commands and the status show the same words.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from defl.cards import Card, whereabouts
from defl.changes import Add, Operation, Remove, ReplaceKey, Rounds
from defl.committee import Federation, faults_of
from defl.fields import WEIGHT_DEFAULT
from defl.ids import NodeId, Round
from defl.succession import (
    READY_CLOSES,
    PendingChange,
    ReadyKey,
    card_in,
    chosen_changes,
    refusal,
)


class Counts(Struct, frozen=True):
    """What follows from the number of members."""

    n: int
    f: int
    q: int

    @classmethod
    def of(cls, members: int) -> "Counts":
        faults = faults_of(members)
        return cls(members, faults, members - faults)

    def __str__(self) -> str:
        return f"n = {self.n}, f = {self.f}, quorum {self.q}"


class Review(Struct, frozen=True):
    """One pending change as a person judges it."""

    digest: str  # in hex
    author: str
    round: int  # that it was proposed in
    operations: list[str]
    approvals: list[str]
    needs: int  # so many approvals
    after: Counts  # if it takes effect alone
    missing: list[str]  # empty: it takes effect when the open round closes
    withdrawn: list[str] = []  # who withdrew its approval in the open round, for the rest of it


def counts_of(federation: Federation) -> Counts:
    return Counts.of(federation.committee.size)


def counts_after(federation: Federation, operations: Iterable[Operation]) -> Counts:
    size = federation.committee.size
    for operation in operations:
        match operation:
            case Add():
                size += 1
            case Remove(member=member) if federation.committee.has(member):
                size -= 1
            case ReplaceKey(member=member) if not federation.committee.has(member):
                size += 1  # a departed member comes back
    return Counts.of(size)


def name_of(federation: Federation, member: NodeId) -> str:
    """A proposal may name a member that does not exist."""
    members = federation.members
    return members[member].name if member < len(members) else f"member {member}"


def in_words(federation: Federation, operation: Operation) -> str:
    match operation:
        case Add(card=card, weight=weight):
            weighed = "" if weight == WEIGHT_DEFAULT else f" with weight {weight}"
            return f"add {card.name} {whereabouts(card)}{weighed}"
        case Remove(member=member):
            return f"remove {name_of(federation, member)}"
        case ReplaceKey(member=member, card=card):
            name = name_of(federation, member)
            if federation.committee.has(member):
                return f"replace the key of {name}, now {whereabouts(card)}"
            return f"bring {name} back with another key, {whereabouts(card)}"
        case Rounds(rounds=rounds):
            return f"train until round {rounds} instead of {federation.rounds}"


def reviews(
    federation: Federation,
    closed: Round,
    changes: Sequence[PendingChange],
    ready: tuple[ReadyKey, ...],
) -> list[Review]:
    """Every pending change, in the log's order. `closed`: the newest closed round."""
    pending = tuple(change for change in changes if change.operations)
    chosen = chosen_changes(federation, Round(closed + 1), pending, ready)
    return [
        Review(
            digest=change.digest.hex(),
            author=name_of(federation, change.author),
            round=change.round,
            operations=[in_words(federation, operation) for operation in change.operations],
            approvals=[name_of(federation, member) for member in change.approvals],
            needs=_needs(federation, change),
            after=counts_after(federation, change.operations),
            missing=_missing(federation, Round(closed + 1), change, ready, chosen),
            withdrawn=[name_of(federation, member) for member in change.withdrawn],
        )
        for change in pending
    ]


def _missing(
    federation: Federation,
    closing: Round,
    change: PendingChange,
    ready: tuple[ReadyKey, ...],
    chosen: list[PendingChange],
) -> list[str]:
    if change in chosen:
        return []
    missing = []
    if reason := refusal(federation, closing, list(change.operations)):
        missing.append(f"it cannot take effect: {reason}")
    if approvals := _approvals_missing(federation, change):
        missing.append(approvals)
    present = {known.key for known in ready if closing - known.round < READY_CLOSES}
    missing += [
        f"{card.name}'s machine is not ready: it must run, reach the members and catch up"
        for card in cards_of(change.operations)
        if card.key not in present
    ]
    if not missing:
        missing.append(
            "another change takes effect first, and this one lapses with it; propose it again"
        )
    return missing


def _needs(federation: Federation, change: PendingChange) -> int:
    """A member may leave alone, unless those that stay would tolerate fewer faults."""
    sinks = counts_after(federation, change.operations).f < federation.committee.faults
    return 1 if change.is_leave and not sinks else federation.committee.quorum


def _approvals_missing(federation: Federation, change: PendingChange) -> str | None:
    lacking = _needs(federation, change) - len(change.approvals)
    if lacking <= 0:
        return None
    others = [
        federation.members[member].name
        for member in federation.committee.members
        if member not in change.approvals
    ]
    approvals = "1 more approval" if lacking == 1 else f"{lacking} more approvals"
    return f"{approvals}, of {_listed(others)}"


def cards_of(operations: Iterable[Operation]) -> list[Card]:
    cards = map(card_in, operations)
    return [card for card in cards if card is not None]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
