"""How much clients train in a round: epochs or steps, and an end when the time is up."""

from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import coo_matrix
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from defl.clients.protocol import Client
from defl.clients.round_length import RoundLength
from defl.clients.sklearn import SklearnClient
from defl.clients.torch import Settings
from defl.clients.torch_supervised import supervised
from defl.errors import UserError
from defl.ids import Round

rng = np.random.default_rng(3)
INPUTS = rng.standard_normal((70, 4)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int64)
BATCH = 16  # 70 examples are five batches, the last of them smaller


def torch_client(**options: Any) -> Client:
    data = TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(LABELS))
    given: dict[str, Any] = {
        "train": DataLoader(data, batch_size=BATCH, shuffle=True),
        "loss": nn.functional.cross_entropy,
    }
    return supervised(
        lambda: nn.Linear(4, 2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        settings=Settings(device="cpu"),
        **(given | options),
    )


def sklearn_client(**options: Any) -> Client:
    network = MLPClassifier((4,), batch_size=BATCH)
    return SklearnClient(network, INPUTS, LABELS, classes=[0, 1], **options)


MAKERS = {"torch": torch_client, "sklearn": sklearn_client}
both = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def ticking() -> Any:
    """A clock that advances by a second whenever it is read."""
    return count().__next__


@both
@pytest.mark.parametrize("steps", [1, 3, 12])
def test_a_round_has_exactly_so_many_steps_whatever_the_data(make: Any, steps: int) -> None:
    client = make(steps=steps)

    _, metrics = client.train(client.initial_weights(), Round(4))

    assert metrics["steps"] == steps
    assert "cut_short" not in metrics


@both
def test_training_ends_at_the_first_batch_after_its_time_and_sends_what_there_is(make: Any) -> None:
    # The clock is read at the start and then before each step but the first.
    client = make(steps=9, max_seconds=3, clock=ticking())
    first = client.initial_weights()

    trained, metrics = client.train(first, Round(1))

    assert (metrics["steps"], metrics["cut_short"]) == (3, 1)
    three, _ = make(steps=3).train(first, Round(1))
    assert all((trained[name] == three[name]).all() for name in first)


@both
def test_a_training_that_ends_in_time_is_not_cut_short(make: Any) -> None:
    client = make(epochs=2, max_seconds=100, clock=ticking())

    _, metrics = client.train(client.initial_weights(), Round(1))

    assert (metrics["steps"], metrics["cut_short"]) == (10, 0)


@both
def test_the_first_step_is_made_however_late_it_is(make: Any) -> None:
    client = make(max_seconds=0.5, clock=ticking())

    _, metrics = client.train(client.initial_weights(), Round(1))

    assert (metrics["steps"], metrics["cut_short"]) == (1, 1)


@both
def test_a_round_of_steps_depends_on_its_weights_and_number_alone(make: Any) -> None:
    first, second = make(steps=4), make(steps=4)
    start = first.initial_weights()
    first.train(start, Round(1))

    again, _ = first.train(start, Round(2))
    alone, _ = second.train(start, Round(2))
    other, _ = second.train(start, Round(3))

    assert all((again[name] == alone[name]).all() for name in start)
    assert not all((again[name] == other[name]).all() for name in start)


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_steps_cycle_through_all_examples_before_one_comes_again(steps: int) -> None:
    length = RoundLength(steps=steps)
    batches = [
        rows.tolist()
        for round_ in range(1, 36)
        for rows in length.batches(70, BATCH, Round(round_))
    ]

    for start in range(0, 35 * steps, 5):
        one_pass = sorted(row for batch in batches[start : start + 5] for row in batch)
        assert one_pass == list(range(70))
    assert batches[:5] != batches[5:10]


def test_batches_in_a_fixed_order_continue_where_the_round_before_ended() -> None:
    used: list[int] = []

    def loss(output: Any, targets: Any) -> Any:
        used.append(int(targets[0]))
        return output.sum() * 0

    numbered = [(torch.ones(1, 4), torch.tensor([number])) for number in range(5)]
    ordered = TensorDataset(torch.ones(5, 4), torch.arange(5))
    for data in (numbered, DataLoader(ordered, batch_size=1)):
        client = torch_client(train=data, loss=loss, steps=3)
        used.clear()
        for round_ in (1, 2, 3):
            client.train(client.initial_weights(), Round(round_))

        assert used == [0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_several_processes_stop_when_the_first_one_is_late() -> None:
    asked = []

    def stop(late: bool) -> bool:
        asked.append(late)
        return len(asked) == 2  # another process is late before the third step

    done = RoundLength(max_seconds=100, clock=ticking()).begin(stop)

    assert list(done.limit(range(9))) == [0, 1]
    assert asked == [False, False]
    assert done.metrics == {"steps": 2, "cut_short": 1}


def test_an_estimator_without_batches_of_its_own_steps_through_200_examples() -> None:
    inputs = np.tile(INPUTS, (9, 1))
    client = SklearnClient(
        SGDClassifier(), inputs, np.tile(LABELS, 9), classes=[0, 1], max_seconds=50, clock=ticking()
    )

    _, metrics = client.train(client.initial_weights(), Round(1))

    assert metrics["steps"] == 4


@both
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"epochs": 0}, "epochs is 0; a round needs a whole number, at least one"),
        ({"steps": -3}, "steps is -3; a round needs a whole number, at least one"),
        ({"steps": 2.5}, "steps is 2.5; a round needs a whole number"),
        ({"epochs": 1, "steps": 5}, "epochs is 1 and steps is 5: .* leave one of them out"),
        ({"max_seconds": 0}, "max_seconds is 0; give a time above 0"),
        ({"max_seconds": "60"}, "max_seconds is '60'; give a time above 0"),
        ({"max_seconds": -1.0}, "max_seconds is -1.0; give a time above 0"),
        ({"max_seconds": float("nan")}, "max_seconds is nan; give a time above 0"),
        ({"max_seconds": float("inf")}, "or leave it out to train to the end"),
    ],
)
def test_nonsense_is_refused_with_what_to_do(make: Any, options: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        make(**options)


def test_sparse_inputs_of_any_format_are_cut_into_batches() -> None:
    client = SklearnClient(
        SGDClassifier(), coo_matrix(INPUTS), LABELS, classes=[0, 1], steps=2, test_inputs=INPUTS,
        test_targets=LABELS,
    )  # fmt: skip

    _, metrics = client.train(client.initial_weights(), Round(1))

    assert metrics["steps"] == 2


def test_no_examples_are_refused() -> None:
    with pytest.raises(UserError, match="the training data are empty"):
        list(RoundLength(steps=2).batches(0, 8, Round(1)))
