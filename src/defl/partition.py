"""How a data set is cut among nodes: evenly at random, or unevenly by class."""

import numpy as np
from numpy.typing import NDArray


def cut(
    labels: NDArray[np.int64], nodes: int, alpha: float | None, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Indices for each node, all of one size.

    With `alpha` each node's shares of the classes are drawn from a symmetric Dirichlet
    distribution (Hsu, Qi, Brown 2019): the smaller alpha, the more one-sided. None: i.i.d.
    """
    size = len(labels) // nodes
    order = rng.permutation(len(labels))
    if alpha is None:
        return [order[i * size : (i + 1) * size] for i in range(nodes)]
    classes = int(labels.max()) + 1
    by_class = [order[labels[order] == c] for c in range(classes)]
    parts = []
    for _ in range(nodes):
        counts = rng.multinomial(size, rng.dirichlet(np.full(classes, alpha)))
        # Drawn with replacement from each class, so that no node's draw depends on the others'.
        parts.append(np.concatenate([rng.choice(by_class[c], counts[c]) for c in range(classes)]))
    return parts
