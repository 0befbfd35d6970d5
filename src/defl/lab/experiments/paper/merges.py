"""Merges of a server that record which nodes' updates they leave out.

Named after an aggregation rule, or `random_K`: the mean of K updates drawn anew in each round,
which separates the effect of how many updates are averaged from that of which ones.
"""

from collections.abc import Sequence

import numpy as np

from defl.aggregation.aggregate import AggregationResult, weighted_sum
from defl.aggregation.model import aggregate_model
from defl.aggregation.rules import rule_named
from defl.committee import faults_of
from defl.errors import UserError
from defl.ids import Round
from defl.lab.baselines.machine import Contribution, ties_of
from defl.schema import Row, Schema

RANDOM = "random_"


class WatchedMerge:
    """A merge (lab/baselines/machine.py) that counts how often it leaves out each author."""

    def __init__(self, name: str, schema: Schema, nodes: int, seed: int) -> None:
        self._kept_at_random = _kept_at_random(name, nodes)
        if self._kept_at_random is None:
            rule_named(name)
        self._name = name
        self._schema = schema
        self._faults_max = faults_of(nodes)
        self._seed = seed
        self._left_out = [0] * nodes
        self._rounds = 0

    def __call__(self, updates: Sequence[Contribution], base: Row, round_: Round) -> Row:
        result = self._merge(updates, base, round_)
        self._rounds += 1
        for update, weight in zip(updates, result.weights, strict=True):
            self._left_out[update.author] += weight == 0
        return result.values

    @property
    def left_out(self) -> tuple[float, ...]:
        """By author, the share of rounds."""
        return tuple(count / max(1, self._rounds) for count in self._left_out)

    def _merge(
        self, updates: Sequence[Contribution], base: Row, round_: Round
    ) -> AggregationResult:
        rows = [update.row for update in updates]
        authors = [update.author for update in updates]
        if self._kept_at_random is not None:
            rng = np.random.default_rng([self._seed, round_])
            kept = rng.permutation(len(rows))[: self._kept_at_random]
            weights = tuple(1 / len(kept) if i in kept else 0.0 for i in range(len(rows)))
            return AggregationResult(
                weighted_sum(rows, weights), weights, weights, "drawn at random"
            )
        return aggregate_model(
            self._name,
            self._schema,
            rows,
            base,
            faults_max=self._faults_max,
            ties=ties_of(round_, authors),
            members=authors,
        )


def _kept_at_random(name: str, nodes: int) -> int | None:
    if not name.startswith(RANDOM):
        return None
    number = name.removeprefix(RANDOM)
    if not number.isdigit() or not 1 <= int(number) <= nodes:
        raise UserError(f"{name!r}: random_1 to random_{nodes} exist; choose one of them")
    return int(number)
