"""Features as small images: a pixel is a feature, in steps of 1/42.

What trains on images and attacks them then works on features too.
"""

import numpy as np
from numpy.typing import NDArray

from defl.errors import PreconditionBroken
from defl.lab.datasets.task import Bytes, Features, Images

WIDTH = 40
STEPS_PER_ONE = 42  # EfficientNet-Lite's features end at 6, a byte at 255


def feature_images(features: Features) -> Images:
    return Images(
        _images(features.train),
        features.train_labels,
        _images(features.test),
        features.test_labels,
        classes=features.classes,
        white=STEPS_PER_ONE,
    )


def _images(rows: NDArray[np.float16] | NDArray[np.float32]) -> Bytes:
    count, size = rows.shape
    if size % WIDTH or rows.min() < 0 or rows.max() * STEPS_PER_ONE > 255:
        raise PreconditionBroken(f"{size} features from {rows.min()} to {rows.max()} are no images")
    steps: Bytes = np.rint(rows * np.float16(STEPS_PER_ONE)).astype(np.uint8)
    return steps.reshape(count, size // WIDTH, WIDTH)
