"""Small pieces of the page's sentences: lists of names, figures with their units."""

from collections.abc import Sequence

NAMES_SHOWN = 4
# Metrics whose names say that they are shares, which people read in percent.
SHARES = ("acc", "f1", "auc", "recall", "precision", "dice", "iou")


def names(who: Sequence[str]) -> str:
    """ "alice", "alice and bob", "alice, bob, carol, dave and 12 more" """
    shown = list(who[:NAMES_SHOWN])
    if len(who) > NAMES_SHOWN:
        return f"{', '.join(shown)} and {len(who) - NAMES_SHOWN} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def metric_text(name: str, value: float | None) -> str:
    if value is None:
        return "not finite"
    is_share = 0 <= value <= 1 and any(part in name.lower() for part in SHARES)
    return f"{value * 100:.1f} %" if is_share else f"{value:.4g}"


def seconds_text(seconds: float) -> str:
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
