"""Varied images are the same pictures, mirrored or moved by a few pixels."""

import numpy as np
import pytest

from defl.lab.datasets.augment import flipped_and_shifted


@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (64, 28, 28)])
def test_images_are_mirrored_and_shifted_with_reflected_edges(
    shape: tuple[int, ...],
) -> None:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, shape).astype(np.uint8)

    varied = flipped_and_shifted(images, rng)

    most = shape[-1] // 10
    seen = set()
    for before, after in zip(images, varied, strict=True):
        edges = [(0, 0)] * (before.ndim - 2) + [(most, most)] * 2
        wide = np.pad(before, edges, mode="symmetric")
        windows = {
            (down, right, flipped): (window[..., ::-1] if flipped else window)
            for down in range(2 * most + 1)
            for right in range(2 * most + 1)
            for flipped in (False, True)
            for window in [wide[..., down : down + shape[-2], right : right + shape[-1]]]
        }
        match = [place for place, window in windows.items() if np.array_equal(window, after)]
        assert len(match) == 1
        seen.add(match[0])
    assert len(seen) > 30  # of 98 or 50 ways
    assert {flipped for _, _, flipped in seen} == {False, True}
