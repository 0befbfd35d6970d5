"""A rule applied to a whole model whose entries play different roles (schema.py).

Distances are measured over trainable entries alone: statistics such as a batch norm's are of
another size and would drown or fake a distance. They follow the weights that the trainable entries
earned, and a variance never goes below zero.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from defl.aggregation.aggregate import Aggregate, Row
from defl.aggregation.gram import Gram
from defl.aggregation.rules import GEOMETRIC, rule_named
from defl.aggregation.workers import ALONE, Workers
from defl.schema import Role, Schema


def columns_of(schema: Schema, role: Role) -> list[slice]:
    """Where the entries of a role stand in a row, neighbours joined."""
    found: list[slice] = []
    start = 0
    for entry in schema.shared:
        stop = start + entry.size
        if entry.role is role and entry.size:
            if found and found[-1].stop == start:
                found[-1] = slice(found[-1].start, stop)
            else:
                found.append(slice(start, stop))
        start = stop
    return found


def aggregate_model(
    name: str,
    schema: Schema,
    rows: Sequence[Row],
    base: Row,
    *,
    faults_max: int,
    ties: Sequence[bytes],
    workers: Workers = ALONE,
) -> Aggregate:
    """The named rule on rows that are laid out as the schema says."""
    if name in GEOMETRIC:
        gram = Gram(base, counted=columns_of(schema, Role.TRAINABLE), workers=workers)
        gram.add(rows)
        known = gram.measured()
        made = GEOMETRIC[name](rows, base, faults_max, ties, workers=workers, measured=known)
    else:
        made = rule_named(name)(rows, base, faults_max, ties, workers=workers)
    values = made.values
    for part in columns_of(schema, Role.VARIANCE):
        np.maximum(values[part], 0, out=values[part])
    return replace(made, values=values)
