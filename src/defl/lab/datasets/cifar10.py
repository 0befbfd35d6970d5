"""CIFAR-10 in its official layout: as a folder `cifar-10-batches-py/`, or as a tar archive of it.

A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. Each batch is checked
against its official md5 before it is read. Archives are not unpacked; only arrays reach the disk.
"""

import lzma
import tarfile
import zlib
from collections.abc import Collection, Mapping
from hashlib import md5, sha256
from pathlib import Path

import numpy as np

from defl.errors import UserError
from defl.lab.datasets.arrays_only import read_pickle
from defl.lab.datasets.download import DownloadSource
from defl.lab.datasets.folder import Arrays, DataMissing, find_file, load_or_build
from defl.lab.datasets.task import Bytes, Images, Labels

SUBFOLDER = "cifar-10"
BATCHES = "cifar-10-batches-py"
PLACES = (BATCHES, "cifar-10-python.tar.gz", "cifar-10-python.tar.xz", "cifar-10-python.tar")
SOURCES = (
    DownloadSource(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        SUBFOLDER,
        170_498_071,
        "c58f30108f718f92721af3b95e74349a",
    ),
)
OFFICIAL_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
TEST = "test_batch"
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
IMAGE_SHAPE = (3, 32, 32)
# A batch has 10,000 images of 3,072 bytes and some names; an archive must not fill the memory.
BATCH_BYTES_MAX = 40_000_000


def files(folder: Path) -> list[Path]:
    path = find_file(folder, SUBFOLDER, PLACES)
    if path is None:
        raise DataMissing(SUBFOLDER, folder, f"{BATCHES}/ and no {PLACES[1]}")
    return [path]


def cifar10(folder: Path, checksums: Mapping[str, str] = OFFICIAL_MD5) -> Images:
    """50,000 + 10,000 colour images, 3 x 32 x 32, from 10 classes; kept as arrays in the cache.

    The cache is named after the checksums, so it holds what the folder must hold.
    """
    [path] = files(folder)

    def build() -> Arrays:
        batches = batches_of(path, checksums)
        test_images, test_labels = batches.pop(TEST)
        return {
            "train_images": np.concatenate([images for images, _ in batches.values()]),
            "train_labels": np.concatenate([labels for _, labels in batches.values()]),
            "test_images": test_images,
            "test_labels": test_labels,
        }

    digest = sha256("".join(checksums.values()).encode()).hexdigest()
    arrays = load_or_build(f"cifar-10-{digest[:32]}", build)
    return Images(
        train_images=arrays["train_images"].view(np.uint8),
        train_labels=arrays["train_labels"].view(np.int64),
        test_images=arrays["test_images"].view(np.uint8),
        test_labels=arrays["test_labels"].view(np.int64),
        classes=len(CLASSES),
    )


def batches_of(path: Path, checksums: Mapping[str, str]) -> dict[str, tuple[Bytes, Labels]]:
    """Images and labels of each batch, after checking its checksum."""
    packed = (folder_members if path.is_dir() else archive_members)(path, checksums)
    batches = {}
    for name, official in checksums.items():
        if name not in packed:
            raise UserError(f"{path} has no {name}: it is not the whole of CIFAR-10")
        data = packed.pop(name)
        if md5(data, usedforsecurity=False).hexdigest() != official:
            raise UserError(
                f"{name} in {path} does not have its official md5 {official}: delete it"
            )
        batches[name] = batch(name, data)
    return batches


def folder_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in names if (path / name).is_file()}


def archive_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """The files of these names in a tar archive of any compression."""
    members = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                name = member.name.removeprefix("./").removeprefix(f"{BATCHES}/")
                if not member.isreg() or name not in names:
                    continue
                if member.size > BATCH_BYTES_MAX:
                    raise UserError(f"{name} in {path} has {member.size} bytes, too many")
                file = archive.extractfile(member)
                members[name] = file.read() if file else b""
    except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path} is not a whole tar archive ({error}): delete it") from error
    return members


def batch(name: str, data: bytes) -> tuple[Bytes, Labels]:
    record = read_pickle(data)
    match record:
        case {b"data": np.ndarray() as images, b"labels": list(labels)}:
            in_order = all(isinstance(y, int) and 0 <= y < len(CLASSES) for y in labels)
            if in_order and images.shape == (len(labels), int(np.prod(IMAGE_SHAPE))):
                return images.reshape(-1, *IMAGE_SHAPE), np.array(labels, np.int64)
    raise UserError(f"{name} is not a batch of CIFAR-10: images of 3,072 bytes and their labels")
