"""What a rule remembers about the members, as an entry of the model itself.

The memory is the last entry of the schema (Role.MEMORY): the reputation (reputation.py) of every
member id there can ever be, then a sample of the last aggregate's change. It is part of every
aggregate and of its digest, so the next reputations are a function of the base and the round's rows
alone, also at a node that was offline and fetched the base. What updates carry in this entry is
ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from defl.aggregation.aggregate import Row
from defl.aggregation.gram import Gram
from defl.aggregation.reputation import PastRounds
from defl.errors import UserError
from defl.fields import MEMBERS_MAX
from defl.schema import VALUE_MAX, Entry, Role, Schema

ENTRY = "defl.memory"

# Enough for a cosine with an error of about 1/64; 16 KB of any model.
SAMPLE_MAX = 4096
SPREAD = 2_654_435_761  # 2^32 / the golden ratio: spreads the picks within their stretches


def with_memory(schema: Schema) -> Schema:
    """The schema of a federation whose rule remembers: the model's entries, then the memory."""
    return Schema((*schema.entries, Entry(ENTRY, (_size(schema),), role=Role.MEMORY)))


def check_memory(schema: Schema) -> None:
    """Refuse a schema whose memory entry is missing, misplaced or of the wrong size."""
    memories = [entry for entry in schema.entries if entry.role is Role.MEMORY]
    size = _size(schema)
    if [entry.shape for entry in memories] != [(size,)] or schema.entries[-1] is not memories[0]:
        raise UserError(
            f"the aggregation rule remembers: the model's last entry, and no other, must have the "
            f"role {Role.MEMORY} and the shape [{size}]; defl federation create adds it"
        )


def _size(schema: Schema) -> int:
    # Room for every id: the schema never changes, but members join and leave.
    return MEMBERS_MAX + _sample_size(schema)


def _sample_size(schema: Schema) -> int:
    trainable = sum(entry.size for entry in schema.shared if entry.role is Role.TRAINABLE)
    return min(SAMPLE_MAX, trainable)


@dataclass(frozen=True)
class Memory:
    """Where in a row the memory is, and which columns its sample covers.

    A member's id is its place in `reputations`.
    """

    reputations: slice
    changes: slice
    sample: NDArray[np.int64]

    @classmethod
    def of(cls, schema: Schema) -> "Memory | None":
        columns = schema.columns(Role.MEMORY)
        if not columns:
            return None
        start, stop = columns[0].start, columns[0].stop
        return cls(
            slice(start, start + MEMBERS_MAX),
            slice(start + MEMBERS_MAX, stop),
            _sampled_columns(schema, _sample_size(schema)),
        )

    def past(self, rows: Sequence[Row], base: Row, members: Sequence[int]) -> PastRounds:
        """What the base remembers about each row's member, and how the row aligns with it."""
        known = base[self.reputations]
        reputations = tuple(float(known[i]) for i in members)
        last = base[self.changes]
        if not last.any():  # the first round: there is no last aggregate
            return PastRounds(reputations, None)
        start = base[self.sample]
        with np.errstate(over="ignore", invalid="ignore"):  # a row may hold anything
            changes = [row[self.sample] - start for row in rows]
        return PastRounds(reputations, tuple(cosines(changes, last)))

    def write(
        self, values: Row, base: Row, members: Sequence[int], reputations: Sequence[float]
    ) -> None:
        """Write the memory into the aggregate; a member without an update keeps its reputation."""
        self.keep(values, base)
        for member, reputation in zip(members, reputations, strict=True):
            values[self.reputations.start + member] = reputation
        change = values[self.sample] - base[self.sample]
        # The next updates carry the sample, and no value of an update may be larger.
        values[self.changes] = np.clip(change, -VALUE_MAX, VALUE_MAX)

    def keep(self, values: Row, base: Row) -> None:
        """Copy the base's memory, whatever the updates carry: the rule does not remember."""
        whole = slice(self.reputations.start, self.changes.stop)
        values[whole] = base[whole]


def _sampled_columns(schema: Schema, size: int) -> NDArray[np.int64]:
    """One column from each of `size` equal stretches of the trainable values, irregularly."""
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
    """Each change's cosine with the last aggregate's; -1 if not finite, 0 for no change."""
    gram = Gram(np.zeros_like(last))
    gram.add([*changes, last])
    measured = gram.measured()
    products, real = measured.geometry.products, measured.geometry.real
    lengths = [sqrt(real(products[i][i])) for i in range(len(products))]
    result = []
    for i, length in enumerate(lengths[:-1]):
        both = length * lengths[-1]
        cosine = real(products[i][-1]) / both if both > 0 else 0.0
        result.append(cosine if measured.finite[i] else -1.0)
    return result
