"""A liar that is another one every few seconds, over the same participant."""

import random
from collections.abc import Mapping

from defl.crypto import Signer
from defl.output import Event, Output
from defl.participant import Participant
from defl.sim.cluster import Behaviour, Wrap

# Mean time for which it stays one kind: some views, so that each lie can have its effect.
CHANGE_AFTER_S = 4.0


class Changing:
    """Between its changes it is one of the other kinds, which go on where they were."""

    def __init__(
        self,
        kinds: Mapping[str, Wrap],
        participant: Participant,
        signer: Signer,
        rng: random.Random,
    ) -> None:
        self.participant = participant
        self._kinds = kinds
        self._signer = signer
        self._rng = rng
        self._liars: dict[str, Behaviour] = {}
        self._change_at = 0.0
        self._current = ""
        self.was: list[str] = []  # its kinds, in order

    def handle(self, event: Event, now: float) -> Output:
        if now >= self._change_at:
            self._change_at = now + self._rng.expovariate(1 / CHANGE_AFTER_S)
            self._current = self._rng.choice(list(self._kinds))
            self.was.append(self._current)
        return self._liar(self._current).handle(event, now)

    def _liar(self, kind: str) -> Behaviour:
        if kind not in self._liars:
            self._liars[kind] = self._kinds[kind](self.participant, self._signer, self._rng)
        return self._liars[kind]
