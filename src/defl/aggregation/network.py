"""Sorting networks: which places to compare, in which order, so that a column ends up sorted.

The comparisons do not depend on the values, so thousands of columns are sorted at once with
minima and maxima alone. Batcher 1968 (odd-even merge sort), as in Knuth, TAOCP 3, 5.3.4.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray


def sorting_network(size: int, sorted_groups: int = 1) -> list[tuple[int, int]]:
    """Comparators (low, high) that sort `size` values; made for the next power of two, with the
    places beyond `size` left out (they would hold infinities, which never move).

    `sorted_groups`, a power of two: that many places beside each other are in order already.
    """
    width = 1 << max(0, size - 1).bit_length()
    pairs: list[tuple[int, int]] = []
    p = sorted_groups
    while p < width:
        k = p
        while k >= 1:
            for j in range(k % p, width - k, 2 * k):
                pairs += [
                    (i, i + k)
                    for i in range(j, min(j + k, width - k))
                    if i // (2 * p) == (i + k) // (2 * p)
                ]
            k //= 2
        p *= 2
    return [(low, high) for low, high in pairs if high < size]


@cache
def middle_network(size: int, first: int, last: int, sorted_groups: int = 1) -> NDArray[np.int32]:
    """Only those comparators of the network on which the places first..last depend."""
    needed = set(range(first, last + 1))
    kept: list[tuple[int, int]] = []
    for low, high in reversed(sorting_network(size, sorted_groups)):
        if low in needed or high in needed:
            needed |= {low, high}
            kept.append((low, high))
    result = np.array(kept[::-1], dtype=np.int32).reshape(len(kept), 2)
    result.setflags(write=False)
    return result
