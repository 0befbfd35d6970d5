"""Clients of the experiments: what they train on, that they learn, and chance by the seed."""

from dataclasses import replace

import numpy as np
import pytest

from defl.clients.protocol import roles_of
from defl.ids import NodeId, Round
from defl.lab.models.learner import MODELS, Samples, TaskLearner
from defl.lab.models.learning import Learning
from defl.schema import Role

IMAGES = Learning("made here", "mlp-32", "rmsprop", 1e-2, batch=8, steps=20)
TEXTS = Learning("made here", "text-64", "adamw", 1e-2, batch=8, steps=40)
HALF = np.arange(100)


def images(count: int = 200) -> Samples:
    """Three classes; an image of class k is bright in its k-th channel."""
    rng = np.random.default_rng(1)
    labels = np.arange(count) % 3
    pixels = rng.integers(0, 60, (count, 3, 8, 8)).astype(np.uint8)
    pixels[np.arange(count), labels] += 150
    return Samples(pixels, labels, pixels[:60], labels[:60], 3, 255)


def texts(count: int = 200) -> Samples:
    """Two classes; word 2 is bad, word 3 is good, 0 is padding."""
    rng = np.random.default_rng(2)
    labels = np.arange(count) % 2
    words = np.where(rng.random((count, 6)) < 0.5, labels[:, None] + 2, 0).astype(np.int32)
    words[:, 0] = labels + 2
    vectors = rng.standard_normal((4, 16)).astype(np.float32)
    return Samples(words, labels, words[:60], labels[:60], 2, vectors=vectors)


def features(count: int = 200) -> Samples:
    """Two classes, told apart by the sign of the first number."""
    labels = np.arange(count) % 2
    rows = np.random.default_rng(3).standard_normal((count, 16)).astype(np.float16)
    rows[:, 0] = 2 * labels - 1
    return Samples(rows, labels, rows[:60], labels[:60], 2)


def client(learner: TaskLearner, *, seed: int = 1, node: int = 0, flipped: bool = False, part=HALF):
    return learner.client(part, seed=seed, node=NodeId(node), flipped=flipped)


def trained(learner: TaskLearner, **more):
    made = client(learner, **more)
    weights, metrics = made.train(made.initial_weights(), Round(1))
    return made, weights, metrics


def same(a, b) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    "learner",
    [
        TaskLearner(IMAGES, images()),
        TaskLearner(TEXTS, features()),
        TaskLearner(replace(IMAGES, model="linear"), features()),
    ],
    ids=["images", "averaged texts", "features"],
)
def test_training_improves_accuracy_and_flipped_labels_reduce_it(learner: TaskLearner) -> None:
    made, weights, metrics = trained(learner)
    assert made.evaluate(weights)["accuracy"] > 0.9
    assert metrics["samples"] == 100

    liar, weights, _ = trained(learner, flipped=True)
    # Of three classes the middle one stays itself: 2 - 1 = 1.
    assert liar.evaluate(weights)["accuracy"] < 0.5


def test_initial_weights_depend_on_the_seed_alone() -> None:
    learner = TaskLearner(IMAGES, images())
    first = client(learner).initial_weights()

    assert same(first, client(learner, node=3).initial_weights())
    assert not same(first, client(learner, seed=2).initial_weights())


@pytest.mark.parametrize("augmented", [False, True])
def test_training_depends_on_seed_node_and_round_alone(augmented: bool) -> None:
    learner = TaskLearner(replace(IMAGES, augmented=augmented, steps=3), images())
    _, once, _ = trained(learner)
    made = client(learner)
    made.train(made.initial_weights(), Round(7))  # whatever was trained before
    again, _ = made.train(made.initial_weights(), Round(1))
    other_round, _ = made.train(made.initial_weights(), Round(2))

    assert same(once, again)
    assert not same(once, other_round)
    assert not same(once, trained(learner, node=1)[1])


def test_node_trains_on_its_own_part_only() -> None:
    data = images()
    hidden = data.train.copy()
    hidden[100:] = 0

    _, all_there, _ = trained(TaskLearner(IMAGES, data))
    _, others_hidden, _ = trained(TaskLearner(IMAGES, replace(data, train=hidden)))

    assert same(all_there, others_hidden)


def test_small_part_is_used_repeatedly_within_a_round() -> None:
    _, _, metrics = trained(TaskLearner(IMAGES, images()), part=np.array([4]))

    assert metrics["samples"] == 1


def test_rate_that_falls_makes_the_last_round_change_least() -> None:
    falling = replace(IMAGES, optimizer="nesterov", falls_over=4)
    assert [falling.rate_in(Round(r)) / falling.rate for r in range(1, 6)] == [
        1,
        0.75,
        0.5,
        0.25,
        0.25,
    ]

    client = TaskLearner(falling, images()).client(HALF, seed=1, node=NodeId(0), flipped=False)
    before = client.initial_weights()
    first, last = (client.train(before, Round(r))[0] for r in (1, 4))
    moved = [sum(np.abs(after[k] - before[k]).sum() for k in before) for after in (first, last)]
    assert moved[1] < 0.7 * moved[0]


def test_subset_of_samples_is_fixed() -> None:
    few = replace(IMAGES, train_samples=50, test_samples=20)
    first, again = TaskLearner(few, images()).samples, TaskLearner(few, images()).samples

    assert (len(first.train), len(first.test)) == (50, 20)
    assert np.array_equal(first.train, again.train)
    assert np.array_equal(first.test_labels, again.test_labels)


def test_batch_norm_statistics_stay_local() -> None:
    data = images(20)
    learner = TaskLearner(replace(IMAGES, model="densenet-bc-10", steps=1, batch=4), data)
    roles = roles_of(client(learner))

    assert roles["norm.running_mean"] == Role.LOCAL
    assert roles["norm.weight"] == Role.TRAINABLE


@pytest.mark.parametrize("name", [name for name in MODELS if name != "densenet-bc-100"])
def test_every_model_takes_a_step(name: str) -> None:
    samples = {"text-64": features, "linear": features, "bilstm-128": texts}.get(name, images)
    learner = TaskLearner(replace(IMAGES, model=name, steps=1, batch=4), samples())
    _, weights, metrics = trained(learner)

    assert np.isfinite(metrics["loss"])
    assert all(np.isfinite(array).all() for array in weights.values())
