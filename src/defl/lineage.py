"""A federation's epochs, proven one from another, starting with the facts of epoch 0.

A pure function of the origin's facts and the handovers. Each handover must be signed by a quorum of
the epoch that it ends, so nobody has to be trusted but the members of epoch 0, and then whoever
they chose.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from defl.committee import Federation
from defl.consensus.chain import genesis_of
from defl.crypto import Scheme
from defl.errors import BrokenLineage, PeerFault, UserError
from defl.ledger import Ledger, LedgerState
from defl.messages import Handover, Snapshot
from defl.output import ClosedRound
from defl.succession import next_membership
from defl.verifier import Verifier


@dataclass(frozen=True, slots=True)
class Epoch:
    federation: Federation
    closed: tuple[ClosedRound, ...] = ()  # the rounds with which its log begins

    @property
    def number(self) -> int:
        return self.federation.epoch

    def verifier(self, scheme: Scheme) -> Verifier:
        """Of what was signed in this epoch."""
        genesis = genesis_of(self.federation, Ledger(self.federation, self.closed))
        return Verifier(self.federation, scheme, genesis.id)

    def proven_state(self, snapshot: Snapshot, scheme: Scheme) -> LedgerState:
        """The state that a quorum of this epoch vouches for."""
        ledger = Ledger(self.federation, self.closed)
        try:
            self.verifier(scheme).verify(snapshot)
        except PeerFault as fault:
            raise BrokenLineage(self.number, str(fault)) from fault
        # Hash first: bytes that a quorum vouches for are the encoding of a state.
        if ledger.root_of(snapshot.state) != snapshot.proof.state_root:
            raise BrokenLineage(self.number, "the state is not the one that the members signed")
        try:
            return ledger.decode(snapshot.state)
        except msgspec.MsgspecError as error:
            raise BrokenLineage(self.number, f"the signed state is malformed: {error}") from error

    def end(self, handover: Handover, scheme: Scheme) -> LedgerState:
        """The state in which this epoch ended."""
        if handover.epoch != self.number:
            raise BrokenLineage(self.number, f"its handover is missing: here is {handover.epoch}'s")
        state = self.proven_state(handover.snapshot, scheme)
        if not state.ended:
            raise BrokenLineage(self.number, "its handover does not show that it has ended")
        return state

    def after(self, end: LedgerState) -> "Epoch":
        """The epoch that follows from this one's last state."""
        try:
            membership = next_membership(self.federation, end.round, end.changes, end.ready)
            if membership is None:
                raise BrokenLineage(self.number, "its last state has no successor")
            return Epoch(Federation(self.federation.charter, membership), end.closed)
        except UserError as error:
            raise BrokenLineage(self.number, f"its successor is impossible: {error}") from error


def federations_of(
    origin: Federation, handovers: Iterable[Handover], scheme: Scheme
) -> tuple[Federation, ...]:
    """The facts of each epoch, the first being `origin`; raises BrokenLineage."""
    return tuple(epoch.federation for epoch in epochs_of(origin, handovers, scheme))


def epochs_of(
    origin: Federation, handovers: Iterable[Handover], scheme: Scheme
) -> tuple[Epoch, ...]:
    epochs = [Epoch(origin)]
    for handover in handovers:
        epochs.append(epochs[-1].after(epochs[-1].end(handover, scheme)))
    return tuple(epochs)
