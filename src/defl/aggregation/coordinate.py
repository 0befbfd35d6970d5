"""Rules that treat every coordinate separately: the median and the trimmed mean.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018. Condition
m >= 2f + 1 for both; breakdown point f/m (trimmed mean) and a half (median). With at most f
Byzantine rows, every coordinate of the aggregate lies within the honest rows' range.

Values are sorted as integers (kernels_numpy.mean_of_middle), where a NaN is just the most extreme
value and is cut off like any other. A row has no single weight here, so weights and scores are
shares of sampled coordinates: the row's mean share in the kept values, and how often it was cut
off.
"""

from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from defl.aggregation import kernels
from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.geometric import sentences
from defl.aggregation.gram import plain
from defl.aggregation.workers import ALONE, Workers
from defl.errors import PreconditionBroken

COLUMNS_SAMPLED = 4096
BITS_PER_PASS = 1 << 20  # at most 4 MB of float32 bits are held at a time by one worker
COLUMNS_PER_PASS_MAX = 1 << 16

Places = tuple[int, int]  # the first and the last place of a sorted column that are averaged
Columns = Callable[[slice], Sequence[Row]]  # the columns of a slice, of all rows


def median_places(rows: int) -> Places:
    return (rows - 1) // 2, rows // 2


def trimmed_places(rows: int, faults_max: int) -> Places:
    if 2 * faults_max >= rows:
        raise PreconditionBroken(
            f"cutting {faults_max} values off each end leaves none of {rows} rows"
        )
    return faults_max, rows - 1 - faults_max


def middle_mean(
    columns_of: Columns,
    rows: int,
    columns: int,
    places: Places,
    *,
    workers: Workers,
    loops: ModuleType | None = None,
) -> Row:
    """The mean of the given places of every sorted column."""
    run = loops or kernels.best(rows * columns)
    first, last = places
    result = np.empty(columns, dtype=np.float32)
    width = max(1, min(COLUMNS_PER_PASS_MAX, BITS_PER_PASS // rows))

    def work(lane: int) -> bool:
        finite = True
        for part in workers.passes(columns, width, lane):
            finite &= run.mean_of_middle(columns_of(part), first, last, result[part])
        return finite

    if not all(workers.gather(work)):
        raise PreconditionBroken("more rows are not finite than the rule can cut off")
    return result


def shares(
    sample: NDArray[np.float32], places: Places
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Each row's mean share in the kept values of the sampled columns, and how often it was cut."""
    bits = sample.view(np.int32)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    order = np.sort(keys, axis=0)
    kept = (keys >= order[places[0]]) & (keys <= order[places[1]])
    columns = sample.shape[1]
    sharing = 1.0 / kept.sum(axis=0)
    # Accumulated first to last: NumPy chooses the order of a plain sum.
    totals = np.add.accumulate(np.where(kept, sharing, 0.0), axis=1)[:, -1]
    weights = tuple(float(total) / columns for total in totals)
    cut = tuple((columns - int(row.sum())) / columns for row in kept)
    return weights, cut


def sampled(rows: Sequence[Row]) -> NDArray[np.float32]:
    step = -(-rows[0].shape[0] // COLUMNS_SAMPLED)
    return np.stack([row[::step] for row in rows])


def aggregate_middle(
    rows: Sequence[Row], places: Places, reason: str, workers: Workers
) -> AggregationResult:
    flat = [plain(row) for row in rows]
    values = middle_mean(
        lambda part: [row[part] for row in flat],
        len(flat),
        flat[0].shape[0],
        places,
        workers=workers,
    )
    weights, cut = shares(sampled(flat), places)
    meaning = f"Weights and scores are shares of at most {COLUMNS_SAMPLED} sampled coordinates."
    return AggregationResult(values, weights, cut, sentences(reason, meaning))


def coordinate_median(
    rows: Sequence[Row],
    base: Row,  # noqa: ARG001 - every rule has this signature
    faults_max: int,  # noqa: ARG001 - as above
    ties: Sequence[bytes],  # noqa: ARG001 - as above
    *,
    workers: Workers = ALONE,
) -> AggregationResult:
    """The median of every coordinate (of an even number of rows: the mean of the middle two)."""
    reason = f"the median of every coordinate of {len(rows)} updates."
    return aggregate_middle(rows, median_places(len(rows)), reason, workers)


def trimmed_mean(
    rows: Sequence[Row],
    base: Row,  # noqa: ARG001 - as above
    faults_max: int,
    ties: Sequence[bytes],  # noqa: ARG001 - as above
    *,
    workers: Workers = ALONE,
) -> AggregationResult:
    """The mean of every coordinate without its `faults_max` smallest and largest values."""
    reason = (
        f"the mean of every coordinate of {len(rows)} updates without the {faults_max} smallest "
        f"and the {faults_max} largest values."
    )
    return aggregate_middle(rows, trimmed_places(len(rows), faults_max), reason, workers)
