"""What a rule remembers of the members, as an entry of the model itself.

The memory is the last entry of the schema (Role.MEMORY): every member's standing (standing.py),
then a sample of the last aggregate's change. It is part of every aggregate and of its digest, so
the next standings are a function of the base and the round's rows alone, also at a node that was
away and fetched the base. What updates carry there is ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from defl.aggregation.aggregate import Row
from defl.aggregation.gram import Gram
from defl.aggregation.reputation import Past, Standing
from defl.errors import UserError
from defl.schema import VALUE_MAX, Entry, Role, Schema

ENTRY = "defl.memory"

# Enough that a cosine is off by about 1/64, well below what it adds up to; 16 KB of any model.
SAMPLE_MAX = 4096
SPREAD = 2_654_435_761  # 2^32 / the golden ratio: spreads picks within their stretch


def with_memory(schema: Schema, members: int) -> Schema:
    """The schema of a federation whose rule remembers: the model's entries and the memory."""
    size = 2 * members + _sample_size(schema)
    return Schema((*schema.entries, Entry(ENTRY, (size,), role=Role.MEMORY)))


def check_memory(schema: Schema, members: int) -> None:
    """A federation whose rule remembers must have room for it, of exactly the right size."""
    found = [entry for entry in schema.entries if entry.role is Role.MEMORY]
    size = 2 * members + _sample_size(schema)
    if [entry.shape for entry in found] != [(size,)] or schema.entries[-1] is not found[0]:
        raise UserError(
            f"the aggregation rule remembers: the model's last entry, and no other, must have the "
            f"role {Role.MEMORY} and the shape [{size}]; defl federation create adds it"
        )


def _sample_size(schema: Schema) -> int:
    trainable = sum(entry.size for entry in schema.shared if entry.role is Role.TRAINABLE)
    return min(SAMPLE_MAX, trainable)


@dataclass(frozen=True)
class Memory:
    """Where in a row the memory stands, and which columns its sample is of."""

    along: slice
    rounds: slice
    changes: slice
    sample: NDArray[np.int64]

    @classmethod
    def of(cls, schema: Schema) -> "Memory | None":
        found = schema.columns(Role.MEMORY)
        if not found:
            return None
        size = _sample_size(schema)
        start, stop = found[0].start, found[0].stop
        members = (stop - start - size) // 2
        return cls(
            slice(start, start + members),
            slice(start + members, stop - size),
            slice(stop - size, stop),
            _sampled_columns(schema, size),
        )

    def past(self, rows: Sequence[Row], base: Row, members: Sequence[int]) -> Past:
        """What the base remembers of each row's member, and how its row goes on from there."""
        along, rounds = base[self.along], base[self.rounds]
        standings = tuple(Standing(float(along[i]), float(rounds[i])) for i in members)
        last = base[self.changes]
        if not last.any():  # the first round: nothing has moved yet
            return Past(standings, None)
        start = base[self.sample]
        with np.errstate(over="ignore", invalid="ignore"):  # a row may hold anything
            changes = [row[self.sample] - start for row in rows]
        return Past(standings, tuple(cosines(changes, last)))

    def write(
        self, values: Row, base: Row, members: Sequence[int], standings: Sequence[Standing]
    ) -> None:
        """Into the aggregate; the standing of a member without an update stays as it is."""
        self.keep(values, base)
        for member, standing in zip(members, standings, strict=True):
            values[self.along.start + member] = standing.along
            values[self.rounds.start + member] = standing.rounds
        change = values[self.sample] - base[self.sample]
        # The next updates carry it along, and no value of theirs may be larger.
        values[self.changes] = np.clip(change, -VALUE_MAX, VALUE_MAX)

    def keep(self, values: Row, base: Row) -> None:
        """For a rule that does not remember: whatever the updates say, nothing changes."""
        whole = slice(self.along.start, self.changes.stop)
        values[whole] = base[whole]


def _sampled_columns(schema: Schema, size: int) -> NDArray[np.int64]:
    """One column of each of `size` equal stretches of the trainable values, not a regular grid."""
    parts = schema.columns(Role.TRAINABLE)
    lengths = np.array([part.stop - part.start for part in parts], dtype=np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(parts) else 0
    place = np.arange(size, dtype=np.int64)
    first = place * total // max(1, size)
    width = (place + 1) * total // max(1, size) - first
    picked = first + place * SPREAD % 2**32 % width
    part = np.searchsorted(ends, picked, side="right")
    starts = np.array([part.start for part in parts], dtype=np.int64)
    columns: NDArray[np.int64] = starts[part] + picked - (ends - lengths)[part]
    return columns


def cosines(changes: Sequence[Row], last: Row) -> list[float]:
    """Between each change and the last aggregate's; -1 for what is not finite, 0 for no change."""
    gram = Gram(np.zeros_like(last))
    gram.add([*changes, last])
    measured = gram.measured()
    products, real = measured.geometry.products, measured.geometry.real
    lengths = [sqrt(real(products[i][i])) for i in range(len(products))]
    found = []
    for i, length in enumerate(lengths[:-1]):
        both = length * lengths[-1]
        cosine = real(products[i][-1]) / both if both > 0 else 0.0
        found.append(cosine if measured.finite[i] else -1.0)
    return found
