"""Standing: what a member's earlier rounds say of it, remembered inside the model itself.

One round alone hardly tells an update with its sign flipped from an honest one trained on unusual
data; many rounds do. Honest members, however different their data, tend to go on in the direction
in which the model has just moved, and whoever trains against the others does not. So every round
in which most members go on adds to each member's standing the cosine between its change and the
change that the last aggregate made. Standings fade, and are bounded on both sides: neither a good
name nor a bad one lasts for ever.

The memory is an entry of the schema (Role.MEMORY), the last one: the members' standings, then a
sample of the last aggregate's change. It is part of every aggregate and of its digest, so the
next standings are a function of the base and the round's rows alone, also at a node that was away
and fetched the base. What updates carry there is ignored.

Cosines come from exact inner products (gram.py), then + - * / and square roots in a fixed order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from defl.aggregation.aggregate import Row
from defl.aggregation.gram import Gram
from defl.errors import UserError
from defl.schema import VALUE_MAX, Entry, Role, Schema

ENTRY = "defl.memory"

# Enough that a cosine is off by about 1/64, well below what it adds up to; 16 KB of any model.
SAMPLE_MAX = 4096
# A round counts when the median cosine is at least this: when a model has converged, steps are
# noise, and the next ones go back on them for everybody.
GOING_ON = 0.1
FADING = 0.98  # each round; half is gone after 34 rounds
STANDING_MAX = 2.0  # about the first five rounds' worth
# Without attack no honest member came near this (docs/AGGREGATION.md).
DISTRUSTED_BELOW = -0.2

SPREAD = 2_654_435_761  # 2^32 / the golden ratio: spreads picks within their stretch


def with_memory(schema: Schema, members: int) -> Schema:
    """The schema of a federation whose rule remembers: the model's entries and the memory."""
    size = members + _sample_size(schema)
    return Schema((*schema.entries, Entry(ENTRY, (size,), role=Role.MEMORY)))


def check_memory(schema: Schema, members: int) -> None:
    """A federation whose rule remembers must have room for it, of exactly the right size."""
    found = [entry for entry in schema.entries if entry.role is Role.MEMORY]
    size = members + _sample_size(schema)
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

    standings: slice
    changes: slice
    sample: NDArray[np.int64]

    @classmethod
    def of(cls, schema: Schema) -> "Memory | None":
        found = schema.columns(Role.MEMORY)
        if not found:
            return None
        size = _sample_size(schema)
        start, stop = found[0].start, found[0].stop
        return cls(
            slice(start, stop - size), slice(stop - size, stop), _sampled_columns(schema, size)
        )

    def standings_after(
        self, rows: Sequence[Row], base: Row, members: Sequence[int]
    ) -> tuple[float, ...]:
        """The standing of each row's member, this round's row included."""
        before = [float(base[self.standings][member]) for member in members]
        last = base[self.changes]
        if not last.any():  # the first round: nothing has moved yet
            return tuple(before)
        start = base[self.sample]
        with np.errstate(over="ignore", invalid="ignore"):  # a row may hold anything
            changes = [row[self.sample] - start for row in rows]
        return faded(before, cosines(changes, last))

    def write(
        self, values: Row, base: Row, members: Sequence[int], standings: Sequence[float]
    ) -> None:
        """Into the aggregate; the standing of a member without an update stays as it is."""
        values[self.standings] = base[self.standings]
        for member, standing in zip(members, standings, strict=True):
            values[self.standings.start + member] = standing
        change = values[self.sample] - base[self.sample]
        # The next updates carry it along, and no value of theirs may be larger.
        values[self.changes] = np.clip(change, -VALUE_MAX, VALUE_MAX)

    def keep(self, values: Row, base: Row) -> None:
        """For a rule that does not remember: whatever the updates say, nothing changes."""
        values[self.standings.start : self.changes.stop] = base[
            self.standings.start : self.changes.stop
        ]


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


def faded(before: Sequence[float], found: Sequence[float]) -> tuple[float, ...]:
    """Standings after a round with these cosines, as float32 can hold them."""
    middle = sorted(found)[(len(found) - 1) // 2]
    counts = middle >= GOING_ON
    summed = [
        FADING * standing + (cosine if counts else 0.0)
        for standing, cosine in zip(before, found, strict=True)
    ]
    return tuple(float(np.float32(max(-STANDING_MAX, min(STANDING_MAX, s)))) for s in summed)


def lowest(standings: Sequence[float], faults_max: int) -> frozenset[int]:
    """The rows whose members have shown themselves; of more than faults_max the lowest ones."""
    low = [i for i, standing in enumerate(standings) if standing < DISTRUSTED_BELOW]
    return frozenset(sorted(low, key=lambda i: (standings[i], i))[:faults_max])
