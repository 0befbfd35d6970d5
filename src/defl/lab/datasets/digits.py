"""1,797 handwritten digits of 8 x 8 pixels, which come with this package as digits.npz.

E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning Repository,
1998, https://doi.org/10.24432/C50P49, licensed under CC BY 4.0. The file holds the test set of that
collection with the pixel values (0 to 16) unchanged and in the order of scikit-learn's
`load_digits`.
"""

from importlib.resources import files

import numpy as np

from defl.lab.datasets.task import Images

WHITE = 16


def digits(rng: np.random.Generator, test: int = 360) -> Images:
    """The images in random order, `test` of them for testing."""
    with (
        (files("defl.lab.datasets") / "digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        all_images, all_labels = arrays["images"], arrays["labels"]
    order = rng.permutation(len(all_labels))
    images, labels = all_images[order], all_labels[order].astype(np.int64)
    return Images(images[test:], labels[test:], images[:test], labels[:test], 10, WHITE)
