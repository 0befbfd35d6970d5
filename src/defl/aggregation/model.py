"""A rule applied to a whole model whose entries play different roles (schema.py).

Distances cover trainable entries alone: statistics such as a batch norm's are of another magnitude
and would drown a distance, or fake one. They follow the weights that the trainable entries earned,
and a variance never goes below zero. What a rule remembers (memory.py) is read from the base and
written into the aggregate.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.gram import Gram, MeasuredRows
from defl.aggregation.memory import Memory
from defl.aggregation.reputation import PastRounds
from defl.aggregation.rules import rule_named
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
    members: Sequence[int],
    agreed: Sequence[int] | None = None,
    workers: Workers = ALONE,
) -> AggregationResult:
    """Apply the named rule to rows that are laid out as the schema says.

    `members` says whose row each is, for a rule that remembers: ids, in the order of the rows.
    `agreed` are the members' weights, in the same order; None: all the same.
    """
    rule = rule_named(name)
    memory = Memory.of(schema)
    measured: MeasuredRows | None = None
    past: PastRounds | None = None
    if rule.geometric:
        gram = Gram(base, counted=schema.columns(Role.TRAINABLE), workers=workers)
        gram.add(rows)
        measured = gram.measured()
    if rule.remembers and memory is not None:
        past = memory.past(rows, base, members)
    result = rule(
        rows,
        base,
        faults_max,
        ties,
        workers=workers,
        measured=measured,
        past=past,
        agreed=agreed,
    )
    values = result.values
    for part in schema.columns(Role.VARIANCE):
        np.maximum(values[part], 0, out=values[part])
    if memory is not None and result.reputations:
        memory.write(values, base, members, result.reputations)
    elif memory is not None:
        memory.keep(values, base)
    return replace(result, values=values)
