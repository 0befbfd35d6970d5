"""A liar that switches between the other kinds every few seconds, over one participant."""

import random
from collections.abc import Mapping

from defl.crypto import Signer
from defl.output import Event, Output
from defl.participant import Participant
from defl.sim.sim_node import Behaviour, Wrap

# Mean time between switches: a few views, so that each attack can take effect.
CHANGE_AFTER_S = 4.0


class Changing:
    """Each kind keeps its state while another one is active."""

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
        self.kinds_used: list[str] = []  # in order

    def handle(self, event: Event, now: float) -> Output:
        if now >= self._change_at:
            self._change_at = now + self._rng.expovariate(1 / CHANGE_AFTER_S)
            self._current = self._rng.choice(list(self._kinds))
            self.kinds_used.append(self._current)
        return self._liar(self._current).handle(event, now)

    def _liar(self, kind: str) -> Behaviour:
        if kind not in self._liars:
            self._liars[kind] = self._kinds[kind](self.participant, self._signer, self._rng)
        return self._liars[kind]
