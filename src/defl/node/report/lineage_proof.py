"""Does a lineage prove every round of a federation's life? Which members took part in each?

The members that trained for round r + 1 signed round r's model as their base, so the certificate of
round r names who contributed to round r + 1. That nobody else did follows from the ledger's states,
where the lineage has one that shows the round: the signatures alone prove only what is there.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from defl.committee import Federation
from defl.crypto import Scheme
from defl.errors import BrokenLineage
from defl.ids import NodeId
from defl.ledger import LedgerState
from defl.lineage import Epoch
from defl.node.report.certificate import RoundCertificate, signed_updates, vouched
from defl.node.report.lineage_file import Lineage
from defl.node.setup.agreement import Agreement
from defl.node.setup.fingerprint import fingerprint


@dataclass(frozen=True, slots=True)
class ProvenEpoch:
    epoch: int
    fingerprint: str  # of its facts: the members of this epoch read it to each other
    first_round: int
    last_round: int | None  # None: it has not ended, as far as the lineage shows
    members: tuple[str, ...]
    faults: int  # f
    quorum: int  # q
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()  # have another key
    ends_with: int | None = None  # the federation's last round, if it was changed


@dataclass(frozen=True, slots=True)
class ProvenRound:
    round: int
    epoch: int
    digest: str  # of its model, in hex
    contributors: tuple[str, ...]  # whose updates it is made of
    missing: tuple[str, ...]  # the other members of the epoch
    complete: bool  # a state of the ledger shows these contributors and no others


def require_origin(agreement: Agreement, lineage: Lineage) -> None:
    if lineage.origin.encode() != agreement.text:
        raise BrokenLineage(0, "the lineage began with another federation.toml than the given one")


@dataclass(slots=True)
class LineageChecker:
    """Every check raises BrokenLineage, which names the epoch and the reason."""

    origin: Federation
    scheme: Scheme
    _epochs: list[Epoch] = field(default_factory=list)
    _states: list[LedgerState] = field(default_factory=list)

    def check(self, lineage: Lineage) -> None:
        self._check_handovers(lineage)
        self._check_states(lineage)
        self._check_certificates(lineage.certificates)
        self._check_ledger(lineage.certificates)

    @property
    def federations(self) -> tuple[Federation, ...]:
        return tuple(epoch.federation for epoch in self._epochs)

    def _check_handovers(self, lineage: Lineage) -> None:
        epoch = Epoch(self.origin)
        self._epochs.append(epoch)
        for handover in lineage.handovers:
            end = epoch.end(handover, self.scheme)
            epoch = epoch.after(end)
            self._epochs.append(epoch)
            self._states.append(end)

    def _check_states(self, lineage: Lineage) -> None:
        newest = (-1, -1)
        for snapshot in lineage.states:
            place = (snapshot.block.epoch, snapshot.block.height)
            if snapshot.block.epoch >= len(self._epochs):
                raise BrokenLineage(self._epochs[-1].number, "its handover is missing")
            if place <= newest:
                raise BrokenLineage(place[0], "a state of the ledger is not newer than the last")
            newest = place
            self._states.append(self._epochs[place[0]].proven_state(snapshot, self.scheme))

    def _check_certificates(self, certificates: Sequence[RoundCertificate]) -> None:
        for round_, certificate in enumerate(certificates):
            facts = self._facts_of(round_, certificate)
            if certificate.round > round_:
                missing = _rounds(range(round_, certificate.round))
                raise BrokenLineage(facts.epoch, f"the certificate of {missing} is missing")
            if certificate.round < round_:
                what = f"the certificate of round {certificate.round} is not in its place"
                raise BrokenLineage(facts.epoch, what)
            self._check_certificate(facts, certificate)
        if certificates and certificates[0].digest != self.origin.initial.hex():
            raise BrokenLineage(0, "round 0 is not the initial model that federation.toml names")
        closed = max((state.round for state in self._states), default=0)
        if len(certificates) < closed:  # the close of a round proves the model of the one before
            missing = _rounds(range(len(certificates), closed))
            raise BrokenLineage(self._epochs[-1].number, f"the certificate of {missing} is missing")

    def _facts_of(self, round_: int, certificate: RoundCertificate) -> Federation:
        """Of the epoch in which this round's certificate must have been signed."""
        if certificate.attestations:
            return self._epochs[-1].federation
        return self._open_in(round_ + 1)

    def _open_in(self, round_: int) -> Federation:
        """The facts of the epoch in which this round, 1 or later, was open."""
        found = bisect_right(self._epochs, round_, key=lambda epoch: epoch.federation.first_round)
        return self._epochs[found - 1].federation

    def _check_certificate(self, facts: Federation, certificate: RoundCertificate) -> None:
        where = f"round {certificate.round}"
        if certificate.chain != self.origin.chain.hex():
            raise BrokenLineage(facts.epoch, f"{where}: a certificate of another federation")
        if certificate.epoch != facts.epoch:
            reason = f"{where}: its certificate is of epoch {certificate.epoch}"
            raise BrokenLineage(facts.epoch, reason)
        is_last = certificate.round == facts.rounds
        if bool(certificate.attestations) != is_last or certificate.round > facts.rounds:
            reason = f"{where}: only the last round, {facts.rounds}, is attested"
            raise BrokenLineage(facts.epoch, reason)
        vouching = vouched(facts, certificate, self.scheme)
        if not vouching.holds:
            raise BrokenLineage(facts.epoch, f"{where}: {vouching.detail}")

    def _check_ledger(self, certificates: Sequence[RoundCertificate]) -> None:
        """The certificates hold what the ledger holds, wherever a state shows it."""
        for state in self._states:
            for closed in state.closed:
                certificate = certificates[closed.round - 1]
                shown = (closed.base.hex(), signed_updates(closed.updates))
                if (certificate.digest, certificate.updates) != shown:
                    reason = (
                        f"round {closed.round - 1}: its certificate does not hold the updates of "
                        f"round {closed.round} that the ledger shows"
                    )
                    raise BrokenLineage(closed.epoch, reason)

    # --- What is proven, once everything is checked ----------------------------------------

    def epochs(self) -> Iterator[ProvenEpoch]:
        before: Federation | None = None
        for index, epoch in enumerate(self._epochs):
            facts = epoch.federation
            committee = facts.committee
            ended = index + 1 < len(self._epochs)
            joined, left, replaced = _changes(before or facts, facts)
            same_end = before is None or before.rounds == facts.rounds
            yield ProvenEpoch(
                facts.epoch,
                fingerprint(facts.chain),
                facts.first_round,
                self._epochs[index + 1].federation.first_round - 1 if ended else None,
                _names(facts, committee.members),
                committee.faults,
                committee.quorum,
                joined,
                left,
                replaced,
                None if same_end else facts.rounds,
            )
            before = facts

    def rounds(self, certificates: Sequence[RoundCertificate]) -> Iterator[ProvenRound]:
        """All rounds whose model is proven, but round 0, which is the initial model."""
        shown = {
            int(closed.round): tuple(ref.author for ref in closed.updates)
            for state in self._states
            for closed in state.closed
        }
        for before, certificate in pairwise(certificates):
            round_ = certificate.round
            facts = self._open_in(round_)
            signed = tuple(NodeId(update.author) for update in before.updates)
            authors = shown.get(round_, signed)
            missing = (member for member in facts.committee.members if member not in authors)
            yield ProvenRound(
                round_,
                facts.epoch,
                certificate.digest,
                _names(facts, authors),
                _names(facts, missing),
                round_ in shown,
            )


def _changes(
    before: Federation, facts: Federation
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Who joined, who left, and whose key was replaced at the boundary between two epochs."""
    was, now = before.committee, facts.committee
    joined = [member for member in now.members if not was.has(member)]
    left = [member for member in was.members if not now.has(member)]
    replaced = [
        member for member in now.members if was.has(member) and was.keys[member] != now.keys[member]
    ]
    return _names(facts, joined), _names(facts, left), _names(facts, replaced)


def _names(facts: Federation, members: Iterable[NodeId]) -> tuple[str, ...]:
    return tuple(facts.members[member].name for member in members)


def _rounds(missing: range) -> str:
    return f"round {missing[0]}" if len(missing) == 1 else f"rounds {missing[0]} to {missing[-1]}"
