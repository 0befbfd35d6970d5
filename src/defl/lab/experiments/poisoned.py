"""A client that trains honestly and poisons what it sends: an attack wrapped around any client."""

import numpy as np

from defl.clients.protocol import Client, Metrics, schema_of
from defl.ids import Round
from defl.lab.attacks.attack import Attack, poisoned_update
from defl.schema import Weights


class Poisoned:
    """Sees its own update alone, as a single member of a federation does."""

    def __init__(self, client: Client, attack: Attack, rng: np.random.Generator) -> None:
        self._client = client
        self._attack = attack
        self._rng = rng
        self.initial_weights = client.initial_weights
        self.evaluate = client.evaluate

    def train(self, weights: Weights, round_: Round, /) -> tuple[Weights, Metrics]:
        schema = schema_of(weights)
        base = schema.flatten(weights)
        trained, metrics = self._client.train(weights, round_)
        row = poisoned_update(self._attack, schema.flatten(trained), None, base, self._rng)
        return {**trained, **schema.unflatten(row)}, metrics
