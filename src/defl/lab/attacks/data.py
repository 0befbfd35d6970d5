"""Attacks on the attacker's training data: flipped labels and a backdoor's trigger."""

import numpy as np
from numpy.typing import NDArray


def flipped_labels(labels: NDArray[np.integer], classes: int) -> NDArray[np.integer]:
    """Class c becomes classes - 1 - c (the paper: 9 - y; two classes swap)."""
    flipped: NDArray[np.integer] = (classes - 1 - labels).astype(labels.dtype)
    return flipped


def stamped(
    images: NDArray[np.float32], *, size: int = 3, value: float = 1.0
) -> NDArray[np.float32]:
    """Images (..., height, width) with a bright square in the lower right corner.

    The trigger of a backdoor (Gu, Dolan-Gavitt, Garg, BadNets, 2017).
    """
    result = images.copy()
    result[..., -size:, -size:] = value
    return result
