"""The effects of all parts of a participant, collected into one Output."""

from collections.abc import Iterable
from typing import TypeVar

from defl.client import ClientEffects
from defl.consensus.effects import ConsensusEffects
from defl.finish import FinishEffects
from defl.ids import Round
from defl.messages import Evidence, Manifest
from defl.output import Committed, Envelope, Notice, Output, Persist, ServeChunk, Work
from defl.pool.pool import PoolEffects

T = TypeVar("T")


class OutputBuilder:
    def __init__(self) -> None:
        self.send: list[Envelope | ServeChunk] = []
        self.notices: list[Notice] = []
        self.evidence: list[Evidence] = []
        self.forget_round: Round | None = None
        self._work: list[Work] = []
        self._model: tuple[Round, Manifest] | None = None
        self._consensus: list[ConsensusEffects] = []
        self._pool: list[PoolEffects] = []

    def add_consensus(self, effects: ConsensusEffects) -> None:
        self._consensus.append(effects)
        self.send.extend(effects.send)
        self.notices.extend(effects.notices)

    def add_pool(self, effects: PoolEffects) -> None:
        self._pool.append(effects)
        self.send.extend(effects.send)
        self._work.extend(effects.work)
        self.notices.extend(effects.notices)

    def add_client(self, effects: ClientEffects) -> None:
        self._model = effects.model or self._model
        self.send.extend(effects.send)
        self._work.extend(effects.work)
        self.notices.extend(effects.notices)

    def add_finish(self, effects: FinishEffects) -> None:
        self.send.extend(effects.send)
        self.notices.extend(effects.notices)

    def build(self, wake_at: float | None) -> Output:
        return Output(
            persist=self._persist(),
            store=tuple(chunk for effects in self._pool for chunk in effects.store),
            send=tuple(self.send),
            committed=self._committed(),
            work=tuple(self._work),
            drop=tuple(digest for effects in self._pool for digest in effects.drop),
            notices=tuple(self.notices),
            wake_at=wake_at,
        )

    def _committed(self) -> tuple[Committed, ...]:
        return tuple(block for effects in self._consensus for block in effects.committed)

    def _persist(self) -> Persist | None:
        persist = Persist(
            record=_last(effects.record for effects in self._consensus),
            blocks=tuple(block for effects in self._consensus for block in effects.blocks),
            snapshot=_last(effects.snapshot for effects in self._consensus),
            acks=tuple(ack for effects in self._pool for ack in effects.acks),
            offer=_last(effects.offer for effects in self._pool),
            model=self._model,
            evidence=tuple(self.evidence),
            forget_round=self.forget_round,
        )
        return None if persist == Persist() else persist


def _last(values: Iterable[T | None]) -> T | None:
    return next((value for value in reversed(list(values)) if value is not None), None)
