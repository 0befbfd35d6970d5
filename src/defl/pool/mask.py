"""Which values of an update travel under `int8_masked`.

Each ten neighbouring values of a trainable entry are a group, in which one travels at a time: a
value is sent in every tenth round. Where a group begins its turn is pseudo-random, so that a round
sends no regular pattern (say, the weights of one class). The last group of an entry may be smaller.

The schema determines how many values travel, and the round which ones. So all updates of a round
carry the same values, and every aggregation rule works on them as it does on whole updates.

Statistics travel whole: they describe the trained weights, and they are few. The aggregation rule's
memory does not travel: what updates carry there is ignored.
"""

from collections.abc import Iterator
from hashlib import shake_128

import numpy as np
from numpy.typing import NDArray

from defl.ids import Round
from defl.schema import Entry, Role, Schema

Columns = slice | NDArray[np.int64]

GROUP = 10  # neighbouring values, of which one travels at a time


def sent_values(entry: Entry) -> int:
    """How many values of an entry travel."""
    match entry.role:
        case Role.TRAINABLE:
            return -(-entry.size // GROUP)
        case Role.STATISTIC | Role.VARIANCE:
            return entry.size
        case Role.MEMORY | Role.LOCAL:
            return 0


def sent_columns(schema: Schema, round_: Round) -> Iterator[Columns]:
    """Of each shared entry, the columns of a row that travel, in ascending order."""
    groups = sum(sent_values(entry) for entry in schema.shared if entry.role is Role.TRAINABLE)
    # SHAKE's output is specified bit by bit, unlike the streams of most random generators.
    turns = np.frombuffer(shake_128(b"defl/mask").digest(groups), dtype=np.uint8)
    start = used = 0
    for entry in schema.shared:
        count = sent_values(entry)
        if entry.role is Role.TRAINABLE:
            group = GROUP * np.arange(count, dtype=np.int64)
            width = np.minimum(GROUP, entry.size - group)
            yield start + group + (turns[used : used + count] + np.int64(round_)) % width
            used += count
        else:
            yield slice(start, start + count)
        start += entry.size
