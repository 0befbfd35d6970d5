"""What a replica wants done after one event, in the order of duty."""

from dataclasses import dataclass, field

from defl.messages import Block, Snapshot
from defl.output import Committed, Envelope, Notice, SafetyRecord


@dataclass(slots=True)
class ConsensusEffects:
    record: SafetyRecord | None = None
    blocks: list[Block] = field(default_factory=list)  # durable together with the record
    snapshot: Snapshot | None = None
    send: list[Envelope] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do, as after most votes, which are only counted."""
        return not (
            self.send or self.blocks or self.committed or self.notices or self.snapshot
        ) and (self.record is None)
