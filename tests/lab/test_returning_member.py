"""An honest member that was away returns to a converged model and counts again."""

from hashlib import sha256
from pathlib import Path

import numpy as np

from defl.aggregation.model import aggregate_model
from defl.clients.protocol import Client, schema_of
from defl.founding import schema_with_rule
from defl.ids import Round
from defl.lab.attacks.attacks import attack_named
from defl.lab.experiments import digits
from defl.lab.experiments.poisoned import PoisonedClient

MEMBERS, FAULTS_MAX, AWAY, ATTACKER = 7, 2, 1, 6


def test_a_member_that_was_away_is_not_left_out_once_the_model_has_converged(
    tmp_path: Path,
) -> None:
    """As in `defl demo`: every member fits its own few images, so the updates of those who stayed
    vary little, and the one that missed four rounds is an outlier."""
    digits.write_parts(tmp_path, MEMBERS, seed=1)
    clients: list[Client] = [
        digits.Digits(digits.part_file(tmp_path, number)) for number in range(MEMBERS)
    ]
    attack = attack_named("sign_flip_10")
    clients[ATTACKER] = PoisonedClient(clients[ATTACKER], attack, node=ATTACKER)
    start = clients[0].initial_weights()
    model = schema_of(start)
    schema = schema_with_rule(model, "adaptive")
    base = np.zeros(schema.values, dtype=np.float32)
    base[: model.values] = model.flatten(start)
    left_out: list[int] = []
    for number in range(1, 31):
        present = [i for i in range(MEMBERS) if i != AWAY or not 20 <= number < 24]
        rows = []
        for i in present:
            weights = model.unflatten(base[: model.values].copy())
            trained = model.flatten(clients[i].train(weights, Round(number))[0])
            rows.append(np.concatenate([trained, base[model.values :]]))
        result = aggregate_model(
            "adaptive",
            schema,
            rows,
            base,
            faults_max=FAULTS_MAX,
            ties=[sha256(bytes([number, i])).digest() for i in present],
            members=present,
        )
        base = result.values
        left_out += [i for i, weight in zip(present, result.weights, strict=True) if weight == 0]

    assert left_out == [ATTACKER] * 30
