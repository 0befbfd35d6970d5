"""The client protocol: an organisation's own code, which trains named arrays in any framework.

This module holds the protocol, derives the schema from a client's weights, and runs a client:
`Training` turns an agreed row into the client's arrays, and checks what the client returns before
anything is sent. It imports no framework, and knows nothing about rounds but their number.
"""

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Protocol, runtime_checkable

import numpy as np

from defl.errors import Diverged, WeightsError
from defl.ids import Round
from defl.schema import (
    MODEL_ROLES,
    VALUE_MAX,
    Array,
    DType,
    Entry,
    Role,
    Row,
    Schema,
    Weights,
    within_bounds,
)

Metrics = Mapping[str, float]  # figures for people: "loss", "accuracy", ...
Roles = Mapping[str, Role | str]  # by entry name

INITIAL_WEIGHTS = "initial_weights"  # the method, where an error names the one that returned it


class Client(Protocol):
    """One organisation's side of the learning: its data, its model and its training.

    The arrays that it receives are copies and may be changed in place. It returns the same names,
    shapes and dtypes each time, in any order.
    """

    def initial_weights(self) -> Weights:
        """All arrays of the model, before the first round."""
        ...

    def train(self, weights: Weights, round_: Round, /) -> tuple[Weights, Metrics]:
        """Train from these weights on this organisation's data, for this round."""
        ...

    def evaluate(self, weights: Weights, /) -> Metrics:
        """How good these weights are on this organisation's data."""
        ...


@runtime_checkable
class HasRoles(Protocol):
    """A client that sets the roles of some of its entries."""

    def roles(self) -> Roles:
        """The entries whose role differs from the default for their dtype."""
        ...


@runtime_checkable
class HasClassCounts(Protocol):
    """A classifier that knows how many training labels it has of each class."""

    def class_counts(self) -> Sequence[int]:
        """Return the number of training labels of each class; empty if there are no classes."""
        ...


@runtime_checkable
class HasEpoch(Protocol):
    """A client whose rounds are one epoch unless its user states steps or epochs."""

    def epoch_steps(self) -> int | None:
        """Return the steps of one epoch, or None if they are unknown or the user states some."""
        ...

    def with_steps(self, steps: int) -> "Client":
        """Return a copy of this client that trains this many steps per round."""
        ...


# --- The schema ------------------------------------------------------------------------------


def roles_of(client: Client) -> Roles:
    """The roles that the client sets; none if it has no `roles` method."""
    return client.roles() if isinstance(client, HasRoles) else {}


def class_counts_of(client: Client) -> Sequence[int]:
    """Return the client's training labels of each class; empty if it does not say."""
    return client.class_counts() if isinstance(client, HasClassCounts) else ()


def schema_of(weights: Weights, roles: Roles | None = None) -> Schema:
    """The schema of these weights, in their order.

    Unless `roles` names an entry, float32 is trainable, and integers and booleans stay local. Other
    floats must be converted or declared local.
    """
    roles = {} if roles is None else roles
    checked_arrays(weights, INITIAL_WEIGHTS)
    unknown = [name for name in roles if name not in weights]
    if unknown:
        raise WeightsError(
            f"roles name {_listed(unknown)}, which the weights do not have; "
            f"the weights have {_listed(list(weights))}"
        )
    entries = []
    for name, array in weights.items():
        dtype = _dtype_of(name, array)
        role = _role_of(name, dtype, roles.get(name))
        entries.append(Entry(name, array.shape, dtype, role))
    return Schema(tuple(entries))


def _dtype_of(name: str, array: Array) -> DType:
    try:
        return DType(array.dtype.name)
    except ValueError:
        raise WeightsError(
            f"entry {name!r} is {array.dtype}, which no schema can hold; "
            f"convert it to one of {', '.join(DType)}"
        ) from None


def _role_of(name: str, dtype: DType, declared: Role | str | None) -> Role:
    if declared is not None:
        if declared not in MODEL_ROLES:
            raise WeightsError(
                f"entry {name!r} cannot have the role {declared!r}; there are: "
                f"{', '.join(MODEL_ROLES)}"
            )
        role = Role(declared)
        if role is not Role.LOCAL and dtype is not DType.FLOAT32:
            raise WeightsError(
                f"entry {name!r} is {dtype} and cannot be {role}: only float32 is shared; "
                "convert it with .astype(np.float32), or give it the role 'local'"
            )
        return role
    if dtype is DType.FLOAT32:
        return Role.TRAINABLE
    if dtype in (DType.FLOAT64, DType.FLOAT16):
        raise WeightsError(
            f"entry {name!r} is {dtype}, but only float32 is shared; "
            "convert it with .astype(np.float32), or give it the role 'local'"
        )
    return Role.LOCAL


def initial_row(client: Client, schema: Schema) -> Row:
    """The client's initial weights as the row from which a federation starts."""
    weights = client.initial_weights()
    _check_weights(weights, schema, INITIAL_WEIGHTS)
    return starting_row(weights, schema)


def starting_row(weights: Weights, schema: Schema) -> Row:
    """These weights, with an empty memory for the aggregation rule."""
    empty = {
        entry.name: np.zeros(entry.shape, dtype=np.float32)
        for entry in schema.entries
        if entry.role is Role.MEMORY
    }
    return schema.flatten({**weights, **empty})


# --- One training ----------------------------------------------------------------------------


class Training:
    """Runs a client on agreed rows and keeps its local entries between rounds."""

    def __init__(self, client: Client, schema: Schema) -> None:
        self._client = client
        self._schema = schema
        first = client.initial_weights()
        _check_weights(first, schema, INITIAL_WEIGHTS)
        self._local = self._local_of(first)
        self.local_changed = False  # by the last training; a frozen base never does

    @property
    def local(self) -> dict[str, Array]:
        """The entries that never leave this node, as of the last training."""
        return {name: array.copy() for name, array in self._local.items()}

    def train(self, row: Row, round_: Round) -> tuple[Row, Metrics]:
        """The trained row. A WeightsError if the client's answer does not fit; the local entries
        are then unchanged."""
        answer: object = self._client.train(self._weights(row), round_)
        weights, metrics = _two_parts(answer)
        _check_weights(weights, self._schema, "train")
        checked = _checked_metrics(metrics, "train")
        trained = self._schema.join({**weights, **self._memory(row)})
        self.local_changed = any(
            not np.array_equal(array, weights[name]) for name, array in self._local.items()
        )
        if self.local_changed:
            self._local = self._local_of(weights)
        return trained, checked

    def evaluate(self, row: Row) -> Metrics:
        answer: object = self._client.evaluate(self._weights(row))
        return _checked_metrics(answer, "evaluate")

    def _weights(self, row: Row) -> dict[str, Array]:
        """Writable copies in the schema's order; a client may change them."""
        shared = self._schema.unflatten(row.copy())
        return {
            entry.name: (
                self._local[entry.name].copy() if entry.role is Role.LOCAL else shared[entry.name]
            )
            for entry in self._schema.entries
            if entry.role is not Role.MEMORY
        }

    def _memory(self, row: Row) -> dict[str, Row]:
        """The aggregation rule's memory: clients never see it, and updates return it unchanged."""
        shared = self._schema.unflatten(row)
        return {e.name: shared[e.name] for e in self._schema.entries if e.role is Role.MEMORY}

    def _local_of(self, weights: Weights) -> dict[str, Array]:
        return {
            entry.name: np.array(weights[entry.name])
            for entry in self._schema.entries
            if entry.role is Role.LOCAL
        }


# --- Checking what a client returns ----------------------------------------------------------


def _two_parts(answer: object) -> tuple[Weights, object]:
    if answer is None:
        raise WeightsError("train returned nothing; end it with `return weights, metrics`")
    if not isinstance(answer, tuple):
        raise WeightsError(
            f"train returned a {type(answer).__name__} alone; end it with `return weights, metrics`"
        )
    if len(answer) != 2:
        raise WeightsError(
            f"train returned {len(answer)} things instead of two; "
            "end it with `return weights, metrics`"
        )
    return answer


def checked_arrays(weights: object, where: str) -> Weights:
    """The weights, if they are arrays by name, of any shape; otherwise a WeightsError."""
    if not isinstance(weights, Mapping):
        raise WeightsError(
            f"{where} returned its weights as a {type(weights).__name__}; "
            "return a dict from each entry's name to its array"
        )
    for name, array in weights.items():
        if not isinstance(name, str):
            raise WeightsError(f"{where} names an entry {name!r}; an entry's name is a string")
        if not isinstance(array, np.ndarray | np.generic):
            raise WeightsError(
                f"entry {name!r} is a {type(array).__name__}, not an array; "
                "convert it to a NumPy array first"
            )
    return weights


def _check_weights(weights: Weights, schema: Schema, where: str) -> None:
    checked_arrays(weights, where)
    entries = [entry for entry in schema.entries if entry.role is not Role.MEMORY]
    names = [entry.name for entry in entries]
    missing = [name for name in names if name not in weights]
    if missing:
        raise WeightsError(
            f"{where} did not return {_listed(missing)}; return every entry of the schema, "
            "changed or not"
        )
    extra = [name for name in weights if name not in set(names)]
    if extra:
        raise WeightsError(
            f"{where} returned {_listed(extra)}, which the schema does not have; leave it out, "
            "or make a federation whose schema has it"
        )
    for entry in entries:
        _check_entry(entry, weights[entry.name], where)


def _check_entry(entry: Entry, array: Array, where: str) -> None:
    if array.shape != entry.shape:
        raise WeightsError(
            f"{where} returned entry {entry.name!r} with shape {array.shape}, the schema says "
            f"{entry.shape}; return it in its original shape"
        )
    if array.dtype != np.dtype(entry.dtype.value):
        raise WeightsError(
            f"{where} returned entry {entry.name!r} as {array.dtype}, the schema says "
            f"{entry.dtype.value}; convert it with .astype(np.{np.dtype(entry.dtype.value).name})"
        )
    if entry.role is not Role.LOCAL and not within_bounds(array):
        reason = (
            "; start from finite values"
            if where == INITIAL_WEIGHTS
            else ": the training diverged; try a smaller learning rate"
        )
        raise Diverged(
            f"{where} returned entry {entry.name!r} with NaN, infinity or a value beyond "
            f"{VALUE_MAX:.3g}{reason}"
        )


def _checked_metrics(metrics: object, where: str) -> dict[str, float]:
    if not isinstance(metrics, Mapping):
        raise WeightsError(
            f"{where} returned its metrics as a {type(metrics).__name__}; "
            "return a dict from names to numbers; it may be empty"
        )
    checked = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise WeightsError(f"{where} names a metric {name!r}; a metric's name is a string")
        number = isinstance(value, int | float | np.integer | np.floating)
        if not number or isinstance(value, bool):
            raise WeightsError(
                f"{where} returned metric {name!r} as a {type(value).__name__}; "
                "make it a number with float(...)"
            )
        # One object for every NaN: containers compare by identity first, so that two equal runs
        # stay equal, although NaN differs from itself.
        checked[name] = nan if isnan(value) else float(value)
    return checked


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
