"""scikit-learn's handwritten digits: 1,797 images of 8 x 8, which come with the package itself.

E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998.
"""

import numpy as np

from defl.errors import UserError
from defl.lab.datasets.task import Images

WHITE = 16


def digits(rng: np.random.Generator, test: int = 360) -> Images:
    """The images in random order, `test` of them for testing."""
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - only who asks needs it
    except ModuleNotFoundError as error:
        raise UserError(
            "the handwritten digits come with scikit-learn, which is not installed: "
            "pip install 'defl[demo]'"
        ) from error
    found = load_digits()
    order = rng.permutation(len(found.target))
    images = found.images[order].astype(np.uint8)
    labels = found.target[order].astype(np.int64)
    return Images(images[test:], labels[test:], images[:test], labels[:test], 10, WHITE)
