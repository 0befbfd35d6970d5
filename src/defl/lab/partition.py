"""Divides a data set among nodes: evenly at random, or unevenly by label.

`divide` and `divide_by_size` give every sample to exactly one node. `cut` gives all nodes equally
many samples, drawn with replacement, for measurements in which the amount of data must not matter.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from defl.errors import UserError

# At this alpha each label already goes to one node; for even smaller numbers NumPy's draws no
# longer sum to 1 (https://github.com/numpy/numpy/issues/24210).
ALPHA_MIN = 1e-9

# For `divide_by_size`: no share of a class is exactly zero, or some sizes could not be fitted.
MIX_MIN = 1e-6
FITTED = 1e-6
FITTING_STEPS_MAX = 10_000

Places = NDArray[np.int64]  # indices of samples in the data set


def divide(
    labels: NDArray[np.int64],
    nodes: int,
    alpha: float | None,
    rng: np.random.Generator,
    *,
    least: int = 1,
) -> list[Places]:
    """The samples of each node, in increasing order; each sample goes to exactly one node.

    `alpha` None: i.i.d. A random order is cut into pieces whose sizes differ by at most one.

    Otherwise, as Lin et al. 2020 (FedDF) and Zhu et al. 2021 do after Hsu et al. 2019: for each
    label on its own, the nodes' shares are drawn from a symmetric Dirichlet distribution with that
    alpha, and the label's samples, in random order, are cut at the cumulated shares. The smaller
    alpha, the more skewed the nodes. Then, while a node has fewer than `least` samples, it
    takes one at random from the node that has most.
    """
    if nodes < 1 or least < 1:
        raise UserError(f"nodes and least are at least 1, not {nodes} and {least}")
    if len(labels) < nodes * least:
        raise UserError(f"{len(labels)} samples are too few for {nodes} nodes with {least} each")
    if alpha is None:
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), nodes)]
    if not ALPHA_MIN <= alpha < np.inf:
        raise UserError(
            f"alpha is a positive number from {ALPHA_MIN} on, not {alpha}; "
            "for i.i.d. data leave it out"
        )
    parts: list[list[Places]] = [[] for _ in range(nodes)]
    for label in np.unique(labels):
        order = rng.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(rng.dirichlet(np.full(nodes, alpha))[:-1]) * len(order)
        for part, piece in zip(parts, np.split(order, np.round(ends).astype(int)), strict=True):
            part.append(piece)
    return [np.sort(part) for part in _filled([np.concatenate(part) for part in parts], least, rng)]


def _filled(parts: list[Places], least: int, rng: np.random.Generator) -> list[Places]:
    for poor in range(len(parts)):
        while len(parts[poor]) < least:
            rich = max(range(len(parts)), key=lambda node: len(parts[node]))
            taken = rng.integers(len(parts[rich]))
            parts[poor] = np.append(parts[poor], parts[rich][taken])
            parts[rich] = np.delete(parts[rich], taken)
    return parts


def counts(labels: NDArray[np.int64], parts: list[Places], classes: int) -> NDArray[np.int64]:
    """Samples of each class at each node: (nodes, classes)."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def divide_by_size(
    labels: NDArray[np.int64],
    sizes: Sequence[int],
    alpha: float | None,
    rng: np.random.Generator,
) -> list[Places]:
    """Each sample goes to exactly one node, and the nodes' numbers of samples are in proportion to
    `sizes`, up to rounding.

    With `alpha` each node's shares of the classes are drawn as in `cut`, then fitted so that all
    nodes together have the whole data set (iterative proportional fitting, Deming and Stephan
    1940): a node with most of the data can hardly be skewed. None: i.i.d.
    """
    classes, counts_of = np.unique(labels, return_counts=True)
    columns = counts_of / len(labels)
    rows = np.array(sizes) / sum(sizes)
    if alpha is None:
        mix = np.tile(columns, (len(sizes), 1))
    else:
        mix = rng.dirichlet(np.full(len(classes), alpha), len(sizes))
    shares = np.maximum(mix, MIX_MIN) * rows[:, None]
    for _ in range(FITTING_STEPS_MAX):
        shares *= (rows / shares.sum(axis=1))[:, None]
        fit = columns / shares.sum(axis=0)
        shares *= fit
        if np.abs(fit - 1).max() < FITTED:
            break
    parts: list[list[Places]] = [[] for _ in sizes]
    for place, label in enumerate(classes):
        order = rng.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(shares[:-1, place] / shares[:, place].sum()) * len(order)
        for part, piece in zip(parts, np.split(order, np.round(ends).astype(int)), strict=True):
            part.append(piece)
    divided = [np.sort(np.concatenate(part)) for part in parts]
    if min(map(len, divided)) == 0:
        raise UserError(f"{len(labels)} samples are too few for members of sizes {list(sizes)}")
    return divided


def cut(
    labels: NDArray[np.int64], nodes: int, alpha: float | None, rng: np.random.Generator
) -> list[Places]:
    """Indices for each node, all of one size.

    With `alpha` each node's shares of the classes are drawn from a symmetric Dirichlet
    distribution (Hsu, Qi, Brown 2019): the smaller alpha, the more skewed. None: i.i.d.
    """
    size = len(labels) // nodes
    order = rng.permutation(len(labels))
    if alpha is None:
        return [order[i * size : (i + 1) * size] for i in range(nodes)]
    classes = int(labels.max()) + 1
    by_class = [order[labels[order] == c] for c in range(classes)]
    parts = []
    for _ in range(nodes):
        drawn = rng.multinomial(size, rng.dirichlet(np.full(classes, alpha)))
        # Drawn with replacement from each class, so that no node's draw depends on the others'.
        parts.append(np.concatenate([rng.choice(by_class[c], drawn[c]) for c in range(classes)]))
    return parts
