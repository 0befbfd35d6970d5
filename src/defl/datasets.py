"""Data sets from a folder that the user names, or that a library brings; nothing is downloaded.

MNIST is read from the four official IDX files, gzipped or not, in the folder or its `mnist/`.
The handwritten digits are scikit-learn's.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from defl.errors import UserError

MNIST_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
IDX_UNSIGNED_BYTE = 8
DIGITS_MAX = 16  # the brightest pixel


@dataclass(frozen=True, slots=True)
class Images:
    """A classification task: images scaled to 0..1 and their classes."""

    train_images: NDArray[np.float32]  # (count, height, width)
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    classes: int


def mnist(folder: Path) -> Images:
    """MNIST (LeCun, Cortes, Burges)."""
    arrays = {name: idx_array(found(folder, file)) for name, file in MNIST_FILES.items()}
    return Images(
        train_images=scaled(arrays["train_images"]),
        train_labels=arrays["train_labels"].astype(np.int64),
        test_images=scaled(arrays["test_images"]),
        test_labels=arrays["test_labels"].astype(np.int64),
        classes=10,
    )


def digits(rng: np.random.Generator, test: int = 360) -> Images:
    """1,797 handwritten digits of 8 x 8 pixels, in random order, `test` of them for testing.

    Alpaydin, Kaynak: Optical Recognition of Handwritten Digits, UCI, as scikit-learn ships it.
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - only who asks needs it
    except ModuleNotFoundError as error:
        raise UserError(
            "the handwritten digits come with scikit-learn, which is not installed: "
            "pip install 'defl[demo]'"
        ) from error
    found = load_digits()
    order = rng.permutation(len(found.target))
    images = (found.images[order] / DIGITS_MAX).astype(np.float32)
    labels = found.target[order].astype(np.int64)
    return Images(images[test:], labels[test:], images[:test], labels[:test], classes=10)


def scaled(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.divide(images, 255, dtype=np.float32)


def found(folder: Path, file: str) -> Path:
    for place in (folder, folder / "mnist"):
        for name in (f"{file}.gz", file):
            if (place / name).is_file():
                return place / name
    raise UserError(
        f"no {file}.gz in {folder} or {folder / 'mnist'}: name the folder that holds MNIST's four "
        "IDX files with --data or DEFL_DATA"
    )


def idx_array(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes: two zeros, the type, the rank, the sizes, the values."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != IDX_UNSIGNED_BYTE:
        raise UserError(f"{path} is not an IDX file of unsigned bytes")
    rank = data[3]
    shape = np.frombuffer(data, dtype=">u4", count=rank, offset=4)
    values = np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * rank)
    if values.size != int(np.prod(shape, dtype=np.int64)):
        raise UserError(f"{path} holds {values.size} values, not those of shape {shape.tolist()}")
    return values.reshape(shape)
