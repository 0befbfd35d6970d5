"""Image augmentation as in the authors' code: random mirroring and small shifts."""

import numpy as np

from defl.lab.datasets.task import Bytes


def flipped_and_shifted(images: Bytes, rng: np.random.Generator, *, share: float = 0.1) -> Bytes:
    """Mirror each image with probability 1/2, and shift it by up to a share of its size.

    Images are (count, ..., height, width); the uncovered border is filled with reflections.
    """
    height, width = images.shape[-2:]
    most = int(share * height), int(share * width)
    flipped = rng.random(len(images)) < 0.5
    down = rng.integers(-most[0], most[0] + 1, len(images))
    right = rng.integers(-most[1], most[1] + 1, len(images))
    rows = _reflected(np.arange(height) - down[:, None], height)
    columns = _reflected(np.arange(width) - right[:, None], width)
    columns[flipped] = columns[flipped, ::-1]
    between = (1,) * (images.ndim - 3)
    every = np.arange(len(images)).reshape(-1, *between, 1, 1)
    lead = tuple(
        np.arange(size).reshape(-1, *(1,) * (images.ndim - 2 - axis))
        for axis, size in enumerate(images.shape[1:-2])
    )
    places = rows.reshape(len(images), *between, height, 1)
    moved: Bytes = images[every, *lead, places, columns.reshape(len(images), *between, 1, width)]
    return moved


def _reflected(
    places: np.ndarray[tuple[int, int], np.dtype[np.int64]], size: int
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Reflect positions outside 0 .. size - 1 at the edge."""
    inside = np.where(places < 0, -1 - places, places)
    return np.where(inside >= size, 2 * size - 1 - inside, inside)
