"""A rule applied to a whole model whose entries play different roles (schema.py).

Distances are measured over trainable entries alone: statistics such as a batch norm's are of
another size and would drown or fake a distance. They follow the weights that the trainable entries
earned, and a variance never goes below zero. What a rule remembers (memory.py) is read from the
base and written into the aggregate.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.gram import Gram
from defl.aggregation.memory import Memory
from defl.aggregation.rules import GEOMETRIC, REMEMBERING, rule_named
from defl.aggregation.workers import ALONE, Workers
from defl.schema import Role, Schema


def aggregate_model(
    name: str,
    schema: Schema,
    rows: Sequence[Row],
    base: Row,
    *,
    faults_max: int,
    ties: Sequence[bytes],
    members: Sequence[int] | None = None,
    workers: Workers = ALONE,
) -> AggregationResult:
    """The named rule on rows that are laid out as the schema says.

    `members` says whose row each is, for a rule that remembers; default: row i is member i's.
    """
    authors = range(len(rows)) if members is None else members
    memory = Memory.of(schema)
    if name in GEOMETRIC:
        gram = Gram(base, counted=schema.columns(Role.TRAINABLE), workers=workers)
        gram.add(rows)
        known = gram.measured()
        if name in REMEMBERING and memory is not None:
            past = memory.past(rows, base, authors)
            made = REMEMBERING[name](
                rows, base, faults_max, ties, workers=workers, measured=known, past=past
            )
        else:
            made = GEOMETRIC[name](rows, base, faults_max, ties, workers=workers, measured=known)
    else:
        made = rule_named(name)(rows, base, faults_max, ties, workers=workers)
    values = made.values
    for part in schema.columns(Role.VARIANCE):
        np.maximum(values[part], 0, out=values[part])
    if memory is not None and made.standings:
        memory.write(values, base, authors, made.standings)
    elif memory is not None:
        memory.keep(values, base)
    return replace(made, values=values)
