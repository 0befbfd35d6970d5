"""The client protocol: what a user's client receives, and the error for each invalid result."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from defl.aggregation.memory import with_memory
from defl.clients.protocol import (
    Client,
    Metrics,
    Training,
    initial_row,
    roles_of,
    schema_of,
)
from defl.errors import UserError, WeightsError
from defl.ids import Round
from defl.schema import DType, Role, Weights

FIRST = {
    "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layer.steps": np.array(0, dtype=np.int64),
    "layer.bias": np.array([0.5, -0.5], dtype=np.float32),
    "seen": np.zeros(2, dtype=np.bool_),
}
SCHEMA = schema_of(FIRST)
ROW = np.arange(8, dtype=np.float32)


class Learner:
    """Adds one to all entries; `answer` overrides the result."""

    def __init__(self, answer: Any = ...) -> None:
        self.answer = answer
        self.given: list[dict[str, Any]] = []

    def initial_weights(self) -> Weights:
        return FIRST

    def train(self, weights: Weights, round_: Round) -> tuple[Weights, Metrics]:
        self.given.append({name: array.copy() for name, array in weights.items()})
        if self.answer is not ...:
            answer: tuple[Weights, Metrics] = self.answer
            return answer
        for array in weights.values():
            array[...] = array + 1  # type: ignore[index]
        return weights, {"loss": 1.0 / (round_ + 1)}

    def evaluate(self, weights: Weights) -> Metrics:
        return {"mean": float(weights["layer.weight"].mean())}


def training(answer: Any = ...) -> Training:
    return Training(Learner(answer), SCHEMA)


# --- Schema ----------------------------------------------------------------------------------


def test_float32_is_trained_and_integers_and_booleans_stay_local() -> None:
    assert [(entry.name, entry.shape, entry.dtype, entry.role) for entry in SCHEMA.entries] == [
        ("layer.weight", (2, 3), DType.FLOAT32, Role.TRAINABLE),
        ("layer.steps", (), DType.INT64, Role.LOCAL),
        ("layer.bias", (2,), DType.FLOAT32, Role.TRAINABLE),
        ("seen", (2,), DType.BOOL, Role.LOCAL),
    ]
    assert SCHEMA.values == 8


def test_roles_may_be_given_as_role_values_or_strings() -> None:
    schema = schema_of(FIRST, roles={"layer.bias": Role.LOCAL, "layer.weight": "variance"})

    assert [entry.role for entry in schema.entries] == [
        Role.VARIANCE, Role.LOCAL, Role.LOCAL, Role.LOCAL,
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_floats_are_refused_unless_they_stay_local(dtype: type) -> None:
    weights = {"x": np.zeros(2, dtype=dtype), "y": np.zeros(1, dtype=np.float32)}
    with pytest.raises(WeightsError, match=r"'x' is float.*astype\(np.float32\).*'local'"):
        schema_of(weights)
    with pytest.raises(WeightsError, match=r"'x' is float.*cannot be statistic"):
        schema_of(weights, roles={"x": "statistic"})

    assert schema_of(weights, roles={"x": "local"}).values == 1


def test_an_integer_cannot_be_shared() -> None:
    with pytest.raises(WeightsError, match=r"'layer.steps' is int64 and cannot be trainable"):
        schema_of(FIRST, roles={"layer.steps": "trainable"})


@pytest.mark.parametrize(
    ("weights", "roles", "reason"),
    [
        (FIRST, {"layer.wieght": "local"}, r"'layer.wieght', which the weights do not have"),
        (FIRST, {"layer.bias": "frozen"}, r"role 'frozen'; there are: trainable, statistic"),
        ({"x": np.zeros(1, dtype=np.complex64)}, {}, r"'x' is complex64, which no schema"),
        ({"x": [1.0, 2.0]}, {}, r"'x' is a list, not an array"),
    ],
)
def test_an_impossible_schema_is_refused_with_the_reason(
    weights: Any, roles: Any, reason: str
) -> None:
    with pytest.raises(WeightsError, match=reason):
        schema_of(weights, roles)


def test_a_schema_must_share_something() -> None:
    with pytest.raises(UserError, match="shares nothing"):
        schema_of({"steps": np.zeros(1, dtype=np.int64)})


def test_a_client_may_choose_the_roles_of_its_entries() -> None:
    class Knowing(Learner):
        def roles(self) -> Mapping[str, str]:
            return {"layer.bias": "statistic"}

    assert roles_of(Learner()) == {}
    assert schema_of(FIRST, roles_of(Knowing())).entries[2].role is Role.STATISTIC


# --- Training --------------------------------------------------------------------------------


def test_training_turns_a_row_into_a_row_with_metrics() -> None:
    trained, metrics = training().train(ROW, Round(1))

    assert trained.dtype == np.float32
    assert trained.tolist() == (ROW + 1).tolist()
    assert metrics == {"loss": 0.5}


def test_the_client_sees_named_arrays_in_the_schemas_shapes_and_order() -> None:
    learner: Client = Learner()
    Training(learner, SCHEMA).train(ROW, Round(1))
    assert isinstance(learner, Learner)
    (given,) = learner.given

    assert list(given) == list(FIRST)
    assert given["layer.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert given["layer.bias"].tolist() == [6, 7]
    assert given["layer.steps"].tolist() == 0


def test_a_client_that_modifies_its_arrays_changes_neither_the_row_nor_the_initial_weights() -> (
    None
):
    row = ROW.copy()
    row.flags.writeable = False
    run = training()
    run.train(row, Round(1))
    run.local["layer.steps"][...] = 77

    assert row.tolist() == ROW.tolist()
    assert FIRST["layer.steps"] == 0
    assert run.local["layer.steps"] == 1


def test_local_entries_are_kept_between_rounds_and_never_in_the_row() -> None:
    run = training()
    for round_ in (1, 2, 3):
        trained, _ = run.train(ROW, Round(round_))

    assert trained.size == 8
    assert run.local["layer.steps"] == 3


def test_evaluation_returns_metrics_and_does_not_change_local_entries() -> None:
    run = training()

    assert run.evaluate(ROW) == {"mean": 2.5}
    assert run.local["layer.steps"] == 0


def test_the_initial_weights_become_the_first_row() -> None:
    assert initial_row(Learner(), SCHEMA).tolist() == [0, 1, 2, 3, 4, 5, 0.5, -0.5]


def test_initial_weights_that_are_not_finite_are_not_blamed_on_a_training() -> None:
    class Broken(Learner):
        def initial_weights(self) -> dict[str, Any]:
            return {**FIRST, "layer.bias": FIRST["layer.bias"] * np.float32("nan")}

    with pytest.raises(WeightsError, match=r"NaN, .*; start from finite values"):
        initial_row(Broken(), schema_of(FIRST))


def test_the_rules_memory_is_hidden_from_the_client_and_passed_through_unchanged() -> None:
    schema = with_memory(SCHEMA)
    learner = Learner()
    row = np.concatenate([ROW, np.arange(schema.values - ROW.size, dtype=np.float32)])
    trained, _ = Training(learner, schema).train(row, Round(1))

    assert list(learner.given[0]) == list(FIRST)
    assert trained[: ROW.size].tolist() == (ROW + 1).tolist()
    assert trained[ROW.size :].tolist() == row[ROW.size :].tolist()
    assert initial_row(Learner(), schema)[ROW.size :].tolist() == [0] * (schema.values - ROW.size)


def test_a_client_cannot_give_an_entry_the_memory_role() -> None:
    with pytest.raises(WeightsError, match="cannot have the role 'memory'"):
        schema_of(FIRST, {"layer.bias": "memory"})


# --- Invalid results -------------------------------------------------------------------------

GOOD: dict[str, Any] = {name: array.copy() for name, array in FIRST.items()}


def but(**changes: Any) -> dict[str, Any]:
    names = {name.replace(".", "_"): name for name in FIRST}
    return GOOD | {names.get(name, name): value for name, value in changes.items()}


INVALID: dict[str, tuple[Any, str]] = {
    "a forgotten return": (None, "returned nothing; end it with `return weights, metrics`"),
    "weights alone": (GOOD, "returned a dict alone; end it with"),
    "three things": ((GOOD, {}, 12), "returned 3 things instead of two"),
    "one thing": ((GOOD,), "returned 1 things instead of two"),
    "a list of arrays": ((list(GOOD.values()), {}), "weights as a list; return a dict"),
    "metrics first": (({}, GOOD), r"did not return 'layer.weight', .*; return every entry"),
    "a missing entry": (
        ({name: GOOD[name] for name in list(GOOD)[:3]}, {}),
        "did not return 'seen'",
    ),
    "an extra entry": ((but(dropout=GOOD["seen"]), {}), "'dropout', which the schema does not"),
    "another shape": (
        (but(layer_weight=GOOD["layer.weight"].T), {}),
        r"'layer.weight' with shape \(3, 2\), the schema says \(2, 3\); return it",
    ),
    "a local entry's shape": ((but(seen=np.zeros(3, dtype=np.bool_)), {}), "'seen' with shape"),
    "doubles": (
        (but(layer_bias=np.zeros(2)), {}),
        r"'layer.bias' as float64, the schema says float32; convert it with .astype\(np.float32\)",
    ),
    "a local entry's dtype": ((but(layer_steps=np.array(0.5)), {}), "'layer.steps' as float64"),
    "no array": ((but(layer_bias=[0.0, 0.0]), {}), "'layer.bias' is a list, not an array"),
    "NaN": (
        (but(layer_bias=np.array([0, np.nan], dtype=np.float32)), {}),
        "'layer.bias' with NaN, infinity .* the training diverged",
    ),
    "infinity": ((but(layer_bias=np.array([0, np.inf], dtype=np.float32)), {}), "'layer.bias'"),
    "a huge value": ((but(layer_bias=np.array([0, 1e30], dtype=np.float32)), {}), "'layer.bias'"),
    "no metrics": ((GOOD, None), "metrics as a NoneType; return a dict"),
    "a number for metrics": ((GOOD, 0.5), "metrics as a float; return a dict"),
    "a metric as text": ((GOOD, {"loss": "low"}), r"metric 'loss' as a str; .*float\("),
    "a metric that is an array": ((GOOD, {"loss": np.zeros(1)}), "metric 'loss' as a ndarray"),
    "a boolean metric": ((GOOD, {"done": True}), "metric 'done' as a bool"),
    "a metric without a name": ((GOOD, {3: 1.0}), "names a metric 3"),
}


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_result_is_refused_by_entry_name_with_advice(case: str) -> None:
    answer, reason = INVALID[case]
    run = training(answer)
    before = run.local
    with pytest.raises(WeightsError, match=reason):
        run.train(ROW, Round(1))

    assert {name: array.tolist() for name, array in run.local.items()} == {
        name: array.tolist() for name, array in before.items()
    }


def test_a_valid_result_in_another_order_with_numpy_numbers_is_accepted() -> None:
    answer = (dict(reversed(GOOD.items())), {"loss": np.float32(0.5), "samples": np.int64(3)})
    trained, metrics = training(answer).train(ROW, Round(1))

    assert trained.tolist() == [0, 1, 2, 3, 4, 5, 0.5, -0.5]
    assert metrics == {"loss": 0.5, "samples": 3.0}


def test_a_local_entry_may_hold_anything() -> None:
    weights = {"x": np.zeros(1, dtype=np.float32), "mine": np.array([np.nan])}
    schema = schema_of(weights, roles={"mine": "local"})

    class Private(Learner):
        def initial_weights(self) -> Weights:
            return weights

    trained, _ = Training(Private((weights, {})), schema).train(weights["x"], Round(1))
    assert trained.tolist() == [0]


def test_a_client_that_does_not_fit_the_federation_is_refused_before_the_first_round() -> None:
    other = schema_of({"another": np.zeros(1, dtype=np.float32)})
    for act in (lambda: Training(Learner(), other), lambda: initial_row(Learner(), other)):
        with pytest.raises(WeightsError, match="initial_weights did not return 'another'"):
            act()


def test_an_evaluation_that_returns_nothing_is_refused_with_the_reason() -> None:
    class Forgetful(Learner):
        def evaluate(self, _weights: Weights) -> Any:
            return None

    with pytest.raises(WeightsError, match="evaluate returned its metrics as a NoneType"):
        Training(Forgetful(), SCHEMA).evaluate(ROW)


def test_many_missing_entries_are_not_all_listed() -> None:
    weights = {f"layer.{i}": np.zeros(1, dtype=np.float32) for i in range(9)}

    class Empty(Learner):
        def initial_weights(self) -> Weights:
            return {}

    with pytest.raises(WeightsError, match=r"'layer.4' and 4 more; return every"):
        Training(Empty(), schema_of(weights))
