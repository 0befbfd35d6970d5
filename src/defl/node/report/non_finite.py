"""Warns about metrics that are NaN or infinite: the weights may be fine, the training is not."""

from collections.abc import Mapping
from math import isfinite

from defl.node.report.log import Log

ADVICE = "try a smaller learning rate, and check the data for missing values"


def warn_not_finite(log: Log, source: str, round_: int, metrics: Mapping[str, float]) -> None:
    """`source` is the method of the client that returned the metrics."""
    names = [name for name, value in metrics.items() if not isfinite(value)]
    if names:
        log.warning(
            f"{source} returned a metric that is not finite",
            round=round_,
            metrics=",".join(names),
            advice=ADVICE,
        )
