"""A client that trains honestly and poisons the update it sends: any attack around any client.

A node's settings name it as `defl.lab.experiments.poisoned:ATTACK`; `defl run --attack` writes
them. The node itself stays honest: it votes, stores and serves like the others.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from defl.clients.protocol import Client, Metrics, roles_of, schema_of
from defl.errors import UserError
from defl.ids import Round
from defl.lab.attacks.attack import Attack, poisoned_update
from defl.lab.attacks.attacks import ATTACKS, attack_named
from defl.node.work.user_code import load_client
from defl.schema import VALUE_MAX, Role, Weights

# The honest client below the attack, "module:attribute" in the project's folder.
HONEST_CLIENT_VARIABLE = "DEFL_HONEST_CLIENT"


class PoisonedClient:
    """Knows its own update alone, as a single member of a federation does.

    Randomness depends on seed, node and round alone, so a node that starts again repeats itself.
    """

    def __init__(self, client: Client, attack: Attack, *, seed: int = 0, node: int = 0) -> None:
        self._client = client
        self._attack = attack
        self._seed = (seed, node)
        self.initial_weights = client.initial_weights
        self.evaluate = client.evaluate

    def roles(self) -> Mapping[str, Role | str]:
        return roles_of(self._client)

    def train(self, weights: Weights, round_: Round, /) -> tuple[Weights, Metrics]:
        schema = schema_of(weights, self.roles())
        base = schema.flatten(weights)  # the client may change the arrays in place
        trained, metrics = self._client.train(weights, round_)
        rng = np.random.default_rng([*self._seed, round_])
        row = poisoned_update(self._attack, schema.flatten(trained), None, base, rng)
        # Every node refuses values beyond the bound, so the strongest attack stays at it.
        limit = np.float32(VALUE_MAX)
        row = np.clip(np.nan_to_num(row, nan=0.0), -limit, limit)
        return {**trained, **schema.unflatten(row)}, metrics


def client_spec(attack: str) -> str:
    """What node.toml names; an unknown attack is a UserError."""
    attack_named(attack)
    return f"{__name__}:{attack}"


def __getattr__(attack: str) -> Callable[[], Client]:
    """`poisoned:sign_flip` makes the client of that attack."""
    if attack not in ATTACKS:
        raise AttributeError(attack)
    return lambda: _client_of(attack)


def _client_of(attack: str) -> Client:
    spec = os.environ.get(HONEST_CLIENT_VARIABLE)
    if spec is None:
        raise UserError(
            f"{HONEST_CLIENT_VARIABLE} is not set: this client needs an honest one to attack; "
            "start it with: defl run PROJECT --attack MEMBER=NAME"
        )
    honest = load_client(spec, Path())  # a worker runs in its project's folder
    return PoisonedClient(honest, attack_named(attack), node=int(os.environ["DEFL_NODE"]))
