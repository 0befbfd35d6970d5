"""Threats by name, and what each makes of a client's update."""

import os

import numpy as np
import pytest

from defl.clients.protocol import Training, schema_of
from defl.errors import UserError
from defl.ids import NodeId, Round
from defl.lab.experiments.cells import Cell
from defl.lab.experiments.threats import (
    ATTACKED_CLIENT,
    FLIP_VARIABLE,
    THREATS,
    attacked,
    client_of,
    environment_of,
    threat_named,
)
from defl.node.work.user_code import load_client
from defl.schema import VALUE_MAX, Codec
from defl.sim.byzantine import KINDS


class Steps:
    """Adds one to everything in place, and counts in an entry that stays local."""

    def __init__(self, step: float = 1.0) -> None:
        self._step = np.float32(step)

    def initial_weights(self):
        return {"w": np.zeros(20000, dtype=np.float32), "count": np.zeros(1, dtype=np.int64)}

    def train(self, weights, _round):
        weights["w"] += self._step
        weights["count"] += 1
        return weights, {"samples": 5}

    def evaluate(self, _weights):
        return {}


SCHEMA = schema_of(Steps().initial_weights())


def trained(threat: str, *, seed: int = 1, round_: int = 1, step: float = 1.0) -> np.ndarray:
    made: list[bool] = []

    def factory(node, flipped):
        made.append(flipped)
        return Steps(step)

    client = client_of(threat_named(threat), factory, seed=seed, node=NodeId(2))
    assert made == [threat == "label_flip"]
    base = np.full(20000, 2.0, dtype=np.float32)
    training = Training(client, SCHEMA)
    row, metrics = training.train(base, Round(round_))
    assert metrics == {"samples": 5}
    assert training.local["count"] == 1
    return row - base


def test_attacks_apply_to_the_change_made_by_training() -> None:
    assert (trained("none") == 1).all()
    assert (trained("sign_flip_1") == -1).all()
    assert (trained("sign_flip_2") == -2).all()
    assert (trained("sign_flip_4") == -4).all()
    assert (trained("label_flip") == 1).all()  # its client was made for it


@pytest.mark.parametrize(("threat", "sigma"), [("gaussian_0.03", 0.03), ("gaussian_1", 1.0)])
def test_gaussian_noise_has_the_papers_size_and_its_own_seed(threat: str, sigma: float) -> None:
    change = trained(threat)

    assert change.mean() == pytest.approx(1, abs=0.05)
    assert change.std() == pytest.approx(sigma, rel=0.05)
    assert (trained(threat) == change).all()
    assert (trained(threat, seed=2) != change).any()
    assert (trained(threat, round_=2) != change).any()


def test_attack_is_clipped_to_the_bound_on_values() -> None:
    change = trained("sign_flip_4", step=VALUE_MAX / 2)

    assert change.min() >= -VALUE_MAX - 2


def test_last_nodes_attack_and_node_0_never_does() -> None:
    assert attacked(7, "sign_flip_2", 2) == {5: "sign_flip_2", 6: "sign_flip_2"}
    assert attacked(4, "none", 0) == {}
    for count in (-1, 4):
        with pytest.raises(UserError, match="choose 0 to 3"):
            attacked(4, "silent", count)


def test_unknown_and_inapplicable_threats_are_refused() -> None:
    with pytest.raises(UserError, match="unknown threat 'gauss'"):
        threat_named("gauss")
    with pytest.raises(UserError, match="only DeFL"):
        Cell("fl", 4, 1, threats=attacked(4, "early_agg", 1))
    with pytest.raises(UserError, match="unknown system"):
        Cell("flower", 4, 1)
    with pytest.raises(UserError, match="only DeFL's members send masked updates, not fl's"):
        Cell("fl", 4, 1, codec=Codec.INT8_MASKED)


def test_every_byzantine_kind_of_a_threat_exists() -> None:
    assert {threat.liar for threat in THREATS.values() if threat.liar} <= KINDS.keys()


@pytest.mark.parametrize(
    ("threat", "change", "flips"),
    [("sign_flip_2", -2, "0"), ("label_flip", 1, "1"), ("none", 1, "0")],
)
def test_real_node_gets_its_attacked_client_from_the_environment(
    threat: str, change: int, flips: str, tmp_path, monkeypatch
) -> None:
    (tmp_path / "honest_steps.py").write_text(
        "from test_threats import Steps\nclient = Steps\n", encoding="utf-8"
    )
    settings = environment_of(threat_named(threat), "honest_steps:client", tmp_path, seed=1)
    for name, value in {**settings, "DEFL_NODE": "3", FLIP_VARIABLE: ""}.items():
        monkeypatch.setenv(name, value)

    client = load_client(ATTACKED_CLIENT, tmp_path)
    weights, _ = client.train(client.initial_weights(), Round(1))

    assert (weights["w"] == change).all()
    assert os.environ[FLIP_VARIABLE] == flips
