"""Attacks with genuine but old statements."""

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise

from defl.crypto import Signer
from defl.messages import Blocks, Certificates, Snapshot
from defl.output import Envelope, Event
from defl.participant import Participant
from defl.sim.byzantine.liar import Item, Liar

# How often an old statement is sent.
PUSH_PERIOD_S = 0.2
# Snapshots and certificates kept, spread over the whole past: the oldest are worth most.
KEPT_MAX = 16


class Rewinder(Liar):
    """Sends snapshots and certificates that were valid once, even in answer to requests.

    Everything verifies. A node that installs a proven snapshot without checking its age loses what
    it has committed since.
    """

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._snapshots: list[Snapshot] = []
        self._certificates: list[Certificates] = []
        self._next_at = 0.0

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case Envelope(to=to, message=Blocks() | Snapshot()) if self._snapshots:
                return (Envelope(to, self._snapshots[0]), item)
        return (item,)

    def besides(self, event: Event, now: float) -> Iterator[Item]:  # noqa: ARG002
        self._remember()
        if now < self._next_at:
            return
        self._next_at = now + PUSH_PERIOD_S
        if self._snapshots:
            yield Envelope(None, self._rng.choice(self._snapshots))
        if self._certificates:
            yield Envelope(None, self._rng.choice(self._certificates))

    def _remember(self) -> None:
        replica = self.participant.replica
        snapshot, record = replica.snapshot, replica.record
        if snapshot is not None and snapshot not in self._snapshots[-1:]:
            self._snapshots.append(snapshot)
            _thin(self._snapshots, [old.block.height for old in self._snapshots])
        certificates = Certificates(record.high_qc, record.high_tc)
        if record.high_qc.view > 0 and certificates not in self._certificates[-1:]:
            self._certificates.append(certificates)
            _thin(self._certificates, [old.qc.view for old in self._certificates])


def _thin(past: list[Snapshot] | list[Certificates], ages: list[int]) -> None:
    """Keep the oldest, the newest and an even spread between them."""
    if len(past) > KEPT_MAX:
        gaps = [later - earlier for earlier, later in pairwise(ages)]
        closest = min(range(1, len(past) - 1), key=lambda i: gaps[i - 1] + gaps[i])
        del past[closest]
