"""Sorting networks: fixed sequences of compare-exchange steps that sort any column.

The steps do not depend on the values, so thousands of columns are sorted at once with minima and
maxima alone. np.partition and np.sort, which handle one column at a time, take 3 to 8 times as
long on 4 to 10 rows. Batcher 1968 (odd-even merge sort), as in Knuth, TAOCP 3, 5.3.4.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray


def sorting_network(size: int) -> list[tuple[int, int]]:
    """Comparators (low, high) that sort `size` values.

    The network of the next power of two, without the places beyond `size`: they would hold
    infinities, which never move.
    """
    width = 1 << max(0, size - 1).bit_length()
    pairs: list[tuple[int, int]] = []
    p = 1
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
def middle_network(size: int, first: int, last: int) -> NDArray[np.int32]:
    """Only the comparators of the network on which the places first..last depend."""
    needed = set(range(first, last + 1))
    kept: list[tuple[int, int]] = []
    for low, high in reversed(sorting_network(size)):
        if low in needed or high in needed:
            needed |= {low, high}
            kept.append((low, high))
    result = np.array(kept[::-1], dtype=np.int32).reshape(len(kept), 2)
    result.setflags(write=False)
    return result
