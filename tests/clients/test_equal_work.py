"""Equal work: members of different size train the same number of steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import defl
from defl.clients.agreed import agreed_steps
from defl.clients.protocol import Client
from defl.clients.sklearn import SklearnClient
from defl.clients.torch import Settings
from defl.clients.torch_supervised import supervised
from defl.errors import UserError
from defl.ids import Round
from defl.running.plan import read_settings

torch.set_num_threads(1)
SIZES = (160, 64, 32, 20)
BATCH = 16


def data(size: int) -> Any:
    rng = np.random.default_rng(size)
    labels = rng.integers(0, 2, size)
    inputs = (rng.standard_normal((size, 4)) + labels[:, None]).astype(np.float32)
    return inputs, labels


def torch_client(size: int, **options: Any) -> Client:
    inputs, labels = data(size)
    return supervised(
        lambda: nn.Linear(4, 2),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train=DataLoader(
            TensorDataset(torch.from_numpy(inputs), torch.from_numpy(labels)),
            batch_size=BATCH,
            shuffle=True,
        ),
        settings=Settings(device="cpu"),
        **options,
    )


def sklearn_client(size: int, **options: Any) -> Client:
    network = MLPClassifier((4,), batch_size=BATCH)
    return SklearnClient(network, *data(size), classes=[0, 1], **options)


both = pytest.mark.parametrize("make", [torch_client, sklearn_client])


def steps_of(history: defl.History) -> list[float]:
    return [metrics["steps"] for metrics in history.rounds[-1].training.values()]


@both
def test_without_a_stated_length_all_train_the_median_sites_epoch(make: Any) -> None:
    history = defl.simulate([make(size) for size in SIZES], rounds=2)

    assert steps_of(history) == [4, 4, 4, 4]  # of 10, 4, 2 and 2


@both
def test_a_stated_length_is_kept(make: Any) -> None:
    epochs = defl.simulate([make(size, epochs=2) for size in SIZES], rounds=1)
    some = [make(SIZES[0], epochs=1), *(make(size) for size in SIZES[1:])]

    assert steps_of(epochs) == [20, 8, 4, 4]
    assert steps_of(defl.simulate(some, rounds=1)) == [10, 4, 2, 2]


@both
def test_a_simulation_leaves_the_callers_clients_as_they_were(make: Any) -> None:
    clients = [make(size) for size in SIZES]
    first, second = (defl.simulate(clients, rounds=2) for _ in range(2))

    _, metrics = clients[0].train(clients[0].initial_weights(), Round(1))

    assert first == second
    assert metrics["steps"] == 10


def test_an_epoch_of_an_estimator_without_batches_counts_parts_of_200_examples() -> None:
    client = SklearnClient(SGDClassifier(), *data(450), classes=[0, 1], epochs=2)

    _, metrics = client.train(client.initial_weights(), Round(1))

    assert metrics["steps"] == 6


# --- defl.toml -----------------------------------------------------------------------------------


def test_steps_and_weights_are_stated_once_in_the_projects_settings(tmp_path: Path) -> None:
    settings = "steps = 20\nweights = { node-0 = 18, node-2 = 3 }\n"
    (tmp_path / "defl.toml").write_text(settings, encoding="utf-8")

    assert agreed_steps(tmp_path) == 20
    assert read_settings(tmp_path).steps == 20
    assert read_settings(tmp_path).weights == {"node-0": 18, "node-2": 3}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "defl.toml: cannot be read: No such file"),
        ("rounds = 3", "defl.toml: it states no steps; write how many steps .* steps = 20"),
        ("steps = 0", "it says 0; write how many steps"),
        ("steps = true", "it says True"),
        ("steps = 2.5", "it says 2.5"),
        ("steps =", "not a TOML file"),
    ],
)
def test_missing_or_impossible_steps_are_refused_with_the_line_to_write(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    if text is not None:
        (tmp_path / "defl.toml").write_text(text, encoding="utf-8")

    with pytest.raises(UserError, match=reason):
        agreed_steps(tmp_path)
