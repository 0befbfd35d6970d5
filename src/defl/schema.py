"""What a model's weights look like: names, shapes, dtypes, and the role of each entry.

The schema is an agreed fact of the federation; from it alone follows the exact size of every
update. Shared entries make one flat row of float32 values; how a row becomes bytes is in
pool/weights.py.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from math import prod
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from defl.errors import UserError, WeightsError
from defl.ids import Digest, digest_of

Array = NDArray[np.generic]
Weights = Mapping[str, Array]  # what a client sees: named arrays
Row = NDArray[np.float32]  # what travels: the shared entries' values, one after another

# |value| may not exceed this: squared distances of any model stay finite in float64, and a base
# plus a delta stays finite in float32.
VALUE_MAX = 2.0**40


# The largest models have a few thousand; a longer list does not describe a model.
ENTRIES_MAX = 100_000


class Role(StrEnum):
    """What happens to an entry."""

    TRAINABLE = "trainable"  # counts in distances, is averaged
    STATISTIC = "statistic"  # averaged with the same weights, does not count in distances
    VARIANCE = "variance"  # a statistic that is kept >= 0 (batch norm's running_var)
    LOCAL = "local"  # never leaves its node (integer counters, private heads)
    MEMORY = "memory"  # of the aggregation rule; hidden from clients, unchanged by updates


# The roles of a model's own entries; the memory is added when a federation is founded.
MODEL_ROLES = tuple(role for role in Role if role is not Role.MEMORY)


class DType(StrEnum):
    """Of entries. Shared ones are float32; local ones, which never travel, may have any."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    INT64 = "int64"
    INT32 = "int32"
    UINT8 = "uint8"
    BOOL = "bool"


class Codec(StrEnum):
    """How a row of values becomes bytes; see pool/weights.py."""

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"  # the change from the base
    INT8_MASKED = "int8_masked"  # one in ten values of it; see pool/mask.py


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One named array of the model."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=2**40)], ...], Meta(max_length=8)]
    dtype: DType = DType.FLOAT32
    role: Role = Role.TRAINABLE

    @property
    def size(self) -> int:
        return prod(self.shape)


class Schema(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """All entries of a model, in the order of their values in a blob."""

    entries: Annotated[tuple[Entry, ...], Meta(min_length=1, max_length=ENTRIES_MAX)]

    def __post_init__(self) -> None:
        names: set[str] = set()
        for entry in self.entries:
            if entry.name in names:
                raise UserError(
                    f"the schema names {entry.name!r} twice; every entry needs its own name"
                )
            names.add(entry.name)
            if entry.role is not Role.LOCAL and entry.dtype is not DType.FLOAT32:
                raise UserError(
                    f"entry {entry.name!r} is {entry.dtype} but shared entries are float32; "
                    "convert it, or give it the role 'local'"
                )
        if self.values == 0:
            raise UserError(
                "the schema shares nothing: at least one float32 entry with values must not be "
                "'local'"
            )

    @cached_property
    def shared(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.role is not Role.LOCAL)

    @cached_property
    def values(self) -> int:
        """How many float32 numbers an update has."""
        return sum(entry.size for entry in self.shared)

    @cached_property
    def model_bytes(self) -> int:
        """Of the whole model in memory, local entries included."""
        return sum(
            entry.size * np.dtype(entry.dtype.value).itemsize
            for entry in self.entries
            if entry.role is not Role.MEMORY
        )

    def columns(self, role: Role) -> list[slice]:
        """The columns of a role's entries in a row, neighbours joined."""
        columns: list[slice] = []
        start = 0
        for entry in self.shared:
            stop = start + entry.size
            if entry.role is role and entry.size:
                if columns and columns[-1].stop == start:
                    columns[-1] = slice(columns[-1].start, stop)
                else:
                    columns.append(slice(start, stop))
            start = stop
        return columns

    @cached_property
    def digest(self) -> Digest:
        return digest_of(msgspec.json.encode(self.entries))

    def flatten(self, weights: Weights) -> Row:
        """The shared entries as one row; an error names the entry that does not fit."""
        return self.join({entry.name: _checked(entry, weights) for entry in self.shared})

    def join(self, weights: Weights) -> Row:
        """The shared entries of checked weights as one row."""
        row = np.empty(self.values, dtype=np.float32)
        start = 0
        for entry in self.shared:
            row[start : start + entry.size] = weights[entry.name].ravel()
            start += entry.size
        return row

    def unflatten(self, row: Row) -> dict[str, Row]:
        """The shared entries by name, as views of the row."""
        arrays = {}
        start = 0
        for entry in self.shared:
            arrays[entry.name] = row[start : start + entry.size].reshape(entry.shape)
            start += entry.size
        return arrays


def _checked(entry: Entry, weights: Weights) -> Array:
    if entry.name not in weights:
        raise WeightsError(f"entry {entry.name!r} is missing from the weights")
    array = np.asarray(weights[entry.name])
    if array.shape != entry.shape:
        raise WeightsError(
            f"entry {entry.name!r} has shape {array.shape}, the schema says {entry.shape}"
        )
    if array.dtype != np.dtype(entry.dtype.value):
        raise WeightsError(
            f"entry {entry.name!r} is {array.dtype}, the schema says {entry.dtype.value}"
        )
    if not within_bounds(array):
        raise WeightsError(
            f"entry {entry.name!r} holds NaN, infinity or a value beyond {VALUE_MAX:.3g}; "
            "did the training diverge?"
        )
    return array


def within_bounds(array: Array) -> bool:
    """Is every value finite, and small enough to keep distances finite?"""
    # One comparison per side refuses NaN too, since NaN is neither below nor above.
    return array.size == 0 or bool(array.min() >= -VALUE_MAX and array.max() <= VALUE_MAX)
