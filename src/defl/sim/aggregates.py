"""Aggregates that simulated nodes share, because equal inputs give equal bits.

Without this, n nodes would compute each round's aggregate n times from the same bytes. The first
two compute it, so that a rule whose bits vary is noticed; the others take over the result. A node
that reads other bytes, or aggregates other updates, computes its own.
"""

from defl.aggregation.aggregate import AggregationResult
from defl.committee import Federation
from defl.ids import Digest, digest_of
from defl.output import Aggregate
from defl.work import Blob, Read, aggregate, inputs_of

# How many nodes compute an aggregate before the others take it over.
COMPUTED = 2
# Aggregates that are kept: nodes that lag by more rounds compute theirs again.
KEPT_MAX = 8


class SharedAggregates:
    def __init__(self) -> None:
        self._computed: dict[tuple[Aggregate, Digest], list[tuple[Blob, AggregationResult]]] = {}

    def __call__(
        self, federation: Federation, work: Aggregate, read: Read
    ) -> tuple[Blob, AggregationResult]:
        content = digest_of(b"".join(read(digest) for digest in inputs_of(work)))
        computed = self._computed.setdefault((work, content), [])
        if len(computed) < COMPUTED:
            computed.append(aggregate(federation, work, read))
        if len(self._computed) > KEPT_MAX:
            del self._computed[next(iter(self._computed))]
        return computed[-1]
