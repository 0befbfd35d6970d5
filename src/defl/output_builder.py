"""The effects of all parts of a participant, collected into one Output."""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from defl.client import ClientEffects
from defl.consensus.effects import ConsensusEffects
from defl.crossing import CrossingEffects
from defl.finish import FinishEffects
from defl.ids import Digest, Round
from defl.messages import (
    Attestation,
    Block,
    Evidence,
    Manifest,
    Message,
    Offer,
    Snapshot,
    StoreAck,
)
from defl.output import (
    Committed,
    Envelope,
    EvidenceFound,
    Notice,
    Output,
    Persist,
    SafetyRecord,
    ServeChunk,
    ServeHandover,
    StoreChunk,
    Switch,
    Work,
)
from defl.pool.pool import PoolEffects
from defl.wire import EPOCHLESS

NO_CHANGE = Persist()


class OutputBuilder:
    def __init__(self, epoch: int = 0) -> None:
        self._epoch = epoch
        self._switch: Switch | None = None
        self.send: list[Envelope | ServeChunk | ServeHandover] = []
        self.notices: list[Notice] = []
        self.evidence: list[Evidence] = []  # kept from now on, and reported
        self.forget_round: Round | None = None
        self._record: SafetyRecord | None = None
        self._blocks: list[Block] = []
        self._snapshot: Snapshot | None = None
        self._acks: list[StoreAck] = []
        self._offer: Offer | None = None
        self._model: tuple[Round, Manifest] | None = None
        self._attestations: tuple[Attestation, ...] = ()
        self._store: list[StoreChunk] = []
        self._committed: list[Committed] = []
        self._work: list[Work] = []
        self._drop: list[Digest] = []

    def enter(self, switch: Switch, record: SafetyRecord | None, epoch: int) -> None:
        """Another epoch begins. What was to be recorded or said in the last one is void: nobody
        needs it any more who knows the handover. Blobs are named by digest: questions about them,
        whose answers are awaited, and answers are still to be sent."""
        self._epoch = epoch
        self._switch = switch
        self._record = record
        self._blocks.clear()
        self._snapshot = None
        self._acks.clear()
        self._offer = None
        self._attestations = ()
        self.keep_said(lambda message: isinstance(message, EPOCHLESS))

    def add_sent(self, items: Iterable[Envelope | ServeChunk | ServeHandover]) -> None:
        """Each message states its epoch."""
        if self._epoch == 0:
            self.send.extend(items)
        else:
            self.send.extend(
                replace(item, epoch=self._epoch) if isinstance(item, Envelope) else item
                for item in items
            )

    def keep_said(self, may_say: Callable[[Message], bool]) -> None:
        """Send no other messages than these."""
        self.send = [
            item for item in self.send if not isinstance(item, Envelope) or may_say(item.message)
        ]

    def add_consensus(self, effects: ConsensusEffects) -> None:
        self._record = effects.record or self._record
        self._blocks += effects.blocks
        self._snapshot = effects.snapshot or self._snapshot
        self._committed += effects.committed
        self.add_sent(effects.send)
        self.notices += effects.notices

    def add_pool(self, effects: PoolEffects) -> None:
        self._acks += effects.acks
        self._offer = effects.offer or self._offer
        self._store += effects.store
        self._drop += effects.drop
        self.add_sent(effects.send)
        self._work += effects.work
        self.notices += effects.notices

    def add_client(self, effects: ClientEffects) -> None:
        self._model = effects.model or self._model
        self.add_sent(effects.send)
        self._work += effects.work
        self.notices += effects.notices

    def add_finish(self, effects: FinishEffects) -> None:
        self._attestations = effects.attestations or self._attestations
        self.add_sent(effects.send)
        self.notices += effects.notices

    def add_crossing(self, effects: CrossingEffects) -> None:
        self.add_sent(effects.send)
        self.notices += effects.notices

    def build(self, wake_at: float | None) -> Output:
        return Output(
            persist=self._persist(),
            store=tuple(self._store),
            send=tuple(self.send),
            committed=tuple(self._committed),
            work=tuple(self._work),
            drop=tuple(self._drop),
            notices=(*self.notices, *map(EvidenceFound, self.evidence)),
            wake_at=wake_at,
        )

    def _persist(self) -> Persist | None:
        persist = Persist(
            record=self._record,
            blocks=tuple(self._blocks),
            snapshot=self._snapshot,
            acks=tuple(self._acks),
            offer=self._offer,
            model=self._model,
            evidence=tuple(self.evidence),
            attestations=self._attestations,
            forget_round=self.forget_round,
            switch=self._switch,
        )
        return None if persist == NO_CHANGE else persist
