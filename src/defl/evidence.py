"""Proofs that a member contradicted itself: the first of each kind against each member.

One proof of a kind says all there is to say, so memory is bounded by members times kinds. A proof
of a later epoch takes the place of an earlier one.
"""

from collections.abc import Iterable

from defl.ids import NodeId
from defl.messages import Evidence, Statement


class EvidenceLog:
    def __init__(self, me: NodeId, evidence: Iterable[Evidence], epoch: int = 0) -> None:
        self._me = me
        self._epoch = epoch
        self._evidence = {_key_of(item): item for item in evidence}

    def __len__(self) -> int:
        return len(self._evidence)

    @property
    def all(self) -> tuple[Evidence, ...]:
        return tuple(self._evidence.values())

    def is_proven(self, author: NodeId, kind: type[Statement]) -> bool:
        known = self._evidence.get((author, kind.__name__))
        return known is not None and known.epoch == self._epoch

    def wants(self, evidence: Evidence) -> bool:
        """Is this the first of its kind against its author in this epoch? The member may have
        another key now. A node keeps none against itself."""
        proven = self.is_proven(evidence.first.author, type(evidence.first))
        return not proven and evidence.first.author != self._me

    def add(self, evidence: Evidence) -> None:
        self._evidence[_key_of(evidence)] = evidence


def _key_of(evidence: Evidence) -> tuple[NodeId, str]:
    return evidence.first.author, type(evidence.first).__name__
