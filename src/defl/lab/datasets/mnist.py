"""MNIST from its four official IDX files, gzipped or not.

Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np

from defl.errors import UserError
from defl.lab.datasets.download import DownloadSource
from defl.lab.datasets.folder import DataMissing, find_file
from defl.lab.datasets.task import Bytes, Images

SUBFOLDER = "mnist"
FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
PLACE = "https://ossci-datasets.s3.amazonaws.com/mnist"  # the place that torchvision names first
SOURCES = tuple(
    DownloadSource(f"{PLACE}/{file}.gz", SUBFOLDER, file_bytes, md5)
    for file, file_bytes, md5 in (
        (FILES["train_images"], 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        (FILES["train_labels"], 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        (FILES["test_images"], 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        (FILES["test_labels"], 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    )
)
IDX_UNSIGNED_BYTE = 8


def files(folder: Path) -> list[Path]:
    """The four files, in the order of FILES."""
    there = []
    for file in FILES.values():
        path = find_file(folder, SUBFOLDER, (f"{file}.gz", file))
        if path is None:
            raise DataMissing(SUBFOLDER, folder, f"{file}.gz")
        there.append(path)
    return there


def mnist(folder: Path) -> Images:
    """60,000 + 10,000 handwritten digits, 28 x 28, from 10 classes."""
    arrays = dict(zip(FILES, map(idx_array, files(folder)), strict=True))
    for part in ("train", "test"):
        if len(arrays[f"{part}_images"]) != len(arrays[f"{part}_labels"]):
            raise UserError(f"{folder} has not as many {part} labels as images of MNIST")
    return Images(
        train_images=arrays["train_images"],
        train_labels=arrays["train_labels"].astype(np.int64),
        test_images=arrays["test_images"],
        test_labels=arrays["test_labels"].astype(np.int64),
        classes=10,
    )


def idx_array(path: Path) -> Bytes:
    """An IDX file of unsigned bytes: two zeros, the type, the rank, the sizes, the values."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path} is not a whole gzip file ({error}): delete it") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != IDX_UNSIGNED_BYTE:
        raise UserError(f"{path} is not an IDX file of unsigned bytes")
    rank = data[3]
    if len(data) < 4 + 4 * rank:
        raise UserError(f"{path} ends within its head")
    shape = np.frombuffer(data, dtype=">u4", count=rank, offset=4)
    values = np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * rank)
    if values.size != int(np.prod(shape, dtype=np.int64)):
        raise UserError(f"{path} holds {values.size} values, not those of shape {shape.tolist()}")
    return values.reshape(shape)
