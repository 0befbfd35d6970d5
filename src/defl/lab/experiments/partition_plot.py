"""A picture of who has what: one bar for each node, one colour for each label."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from defl.errors import UserError

FORMATS = (".png", ".svg")


def plot_partition(
    counts: NDArray[np.int64], classes: tuple[str, ...], title: str, path: Path
) -> None:
    """`counts` is (nodes, classes); the ending of `path` chooses PNG or SVG."""
    if path.suffix not in FORMATS:
        raise UserError(f"a picture is written as {' or '.join(FORMATS)}, not {path.name!r}")
    try:
        from matplotlib import colormaps, rc_context  # noqa: PLC0415 - an extra, slow to import
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as wrong:
        raise UserError("pictures are made by matplotlib: pip install 'defl[paper]'") from wrong
    nodes = len(counts)
    figure = Figure(figsize=(9, 1.6 + 0.42 * nodes), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["tab10" if len(classes) <= 10 else "tab20"]
    left = np.zeros(nodes, np.int64)
    for label, name in enumerate(classes):
        axes.barh(
            range(nodes),
            counts[:, label],
            left=left,
            color=colours(label % colours.N),
            label=name,
            edgecolor="white",
            linewidth=0.5,
        )
        left += counts[:, label]
    for node, total in enumerate(left):
        axes.annotate(f" {total:,}", (float(total), node), va="center", fontsize=9)
    axes.set_yticks(range(nodes), [f"node {node}" for node in range(nodes)])
    axes.invert_yaxis()
    axes.set_xlim(0, float(left.max()) * 1.1)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("training samples")
    axes.set_title(title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, title="label")
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and no random names inside: the same partition is the same file.
    with rc_context({"svg.hashsalt": "defl"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
