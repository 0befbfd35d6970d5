"""What a model's weights look like: names, shapes, dtypes, and what is done with each entry.

The schema is an agreed fact of the federation; from it alone follows the exact size of every
update. How arrays become bytes is in pool/weights.py.
"""

from enum import StrEnum
from functools import cached_property
from math import prod
from typing import Annotated

import msgspec
from msgspec import Meta

from defl.errors import UserError
from defl.ids import Digest, digest_of


class Role(StrEnum):
    """What happens to an entry."""

    TRAINABLE = "trainable"  # counts in distances, is averaged
    STATISTIC = "statistic"  # averaged with the same weights, does not count in distances
    VARIANCE = "variance"  # a statistic that is kept >= 0 (batch norm's running_var)
    LOCAL = "local"  # never leaves its node (integer counters, private heads)


class DType(StrEnum):
    """The dtypes that may be shared; local entries may have any, and are not in the bytes."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    INT64 = "int64"
    INT32 = "int32"
    UINT8 = "uint8"
    BOOL = "bool"


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
    """All entries of a model, in the order in which their values stand in a blob."""

    entries: Annotated[tuple[Entry, ...], Meta(min_length=1, max_length=100_000)]

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"the schema names {twice!r} twice; every entry needs its own name")
        for entry in self.entries:
            if entry.role is not Role.LOCAL and entry.dtype is not DType.FLOAT32:
                raise UserError(
                    f"entry {entry.name!r} is {entry.dtype} but shared entries are float32; "
                    "convert it, or give it the role 'local'"
                )
        if self.values == 0:
            raise UserError("the schema shares nothing: at least one entry must not be 'local'")

    @cached_property
    def shared(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.role is not Role.LOCAL)

    @cached_property
    def values(self) -> int:
        """How many float32 numbers an update has."""
        return sum(entry.size for entry in self.shared)

    @cached_property
    def digest(self) -> Digest:
        return digest_of(msgspec.json.encode(self.entries))
