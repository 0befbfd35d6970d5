"""The effects of all parts of a participant, collected into one Output."""

from defl.client import ClientEffects
from defl.consensus.effects import ConsensusEffects
from defl.finish import FinishEffects
from defl.ids import Digest, Round
from defl.messages import Block, Evidence, Manifest, Offer, Snapshot, StoreAck
from defl.output import (
    Committed,
    Envelope,
    Notice,
    Output,
    Persist,
    SafetyRecord,
    ServeChunk,
    StoreChunk,
    Work,
)
from defl.pool.pool import PoolEffects

NO_CHANGE = Persist()


class OutputBuilder:
    def __init__(self) -> None:
        self.send: list[Envelope | ServeChunk] = []
        self.notices: list[Notice] = []
        self.evidence: list[Evidence] = []
        self.forget_round: Round | None = None
        self._record: SafetyRecord | None = None
        self._blocks: list[Block] = []
        self._snapshot: Snapshot | None = None
        self._acks: list[StoreAck] = []
        self._offer: Offer | None = None
        self._model: tuple[Round, Manifest] | None = None
        self._store: list[StoreChunk] = []
        self._committed: list[Committed] = []
        self._work: list[Work] = []
        self._drop: list[Digest] = []

    def add_consensus(self, effects: ConsensusEffects) -> None:
        self._record = effects.record or self._record
        self._blocks += effects.blocks
        self._snapshot = effects.snapshot or self._snapshot
        self._committed += effects.committed
        self.send += effects.send
        self.notices += effects.notices

    def add_pool(self, effects: PoolEffects) -> None:
        self._acks += effects.acks
        self._offer = effects.offer or self._offer
        self._store += effects.store
        self._drop += effects.drop
        self.send += effects.send
        self._work += effects.work
        self.notices += effects.notices

    def add_client(self, effects: ClientEffects) -> None:
        self._model = effects.model or self._model
        self.send += effects.send
        self._work += effects.work
        self.notices += effects.notices

    def add_finish(self, effects: FinishEffects) -> None:
        self.send += effects.send
        self.notices += effects.notices

    def build(self, wake_at: float | None) -> Output:
        return Output(
            persist=self._persist(),
            store=tuple(self._store),
            send=tuple(self.send),
            committed=tuple(self._committed),
            work=tuple(self._work),
            drop=tuple(self._drop),
            notices=tuple(self.notices),
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
            forget_round=self.forget_round,
        )
        return None if persist == NO_CHANGE else persist
