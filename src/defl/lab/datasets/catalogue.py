"""The data sets by name: their sources, and how to find, download and read them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from defl.errors import UserError
from defl.lab.datasets import cifar10, cifar10_features, mnist, sentiment140
from defl.lab.datasets.digits import digits
from defl.lab.datasets.download import DownloadSource, Progress, download, silent
from defl.lab.datasets.folder import DataMissing
from defl.lab.datasets.task import Features, Images, Texts


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set; one without sources is part of a package and needs no folder."""

    what: str
    classes: tuple[str, ...]
    load: Callable[[Path], Features | Images | Texts]
    sources: tuple[DownloadSource, ...] = ()
    files: Callable[[Path], list[Path]] = lambda _: []
    check: Callable[[Path], None] = lambda _: None  # after a download without a checksum
    prepare: Callable[[Path, Progress], object] = lambda _folder, _progress: None  # takes minutes


DIGITS = tuple("0123456789")
DATASETS: dict[str, DataSet] = {
    "cifar-10": DataSet(
        "50,000 + 10,000 colour images of 32 x 32, ten classes (Krizhevsky 2009)",
        cifar10.CLASSES,
        cifar10.cifar10,
        cifar10.SOURCES,
        cifar10.files,
    ),
    cifar10_features.NAME: DataSet(
        "CIFAR-10 as features of a frozen EfficientNet-Lite0 (Tan, Le 2019)",
        cifar10.CLASSES,
        cifar10_features.cifar10_features,
        cifar10.SOURCES,
        cifar10.files,
        prepare=cifar10_features.cifar10_features,
    ),
    "sentiment140": DataSet(
        "1,600,000 tweets, negative or positive (Go, Bhayani, Huang 2009; academic use)",
        ("negative", "positive"),
        lambda folder: sentiment140.sentiment140(sentiment140.files(folder)[0]),
        sentiment140.SOURCES,
        sentiment140.files,
        sentiment140.require_whole,
    ),
    "mnist": DataSet(
        "60,000 + 10,000 handwritten digits of 28 x 28 (LeCun, Cortes, Burges)",
        DIGITS,
        mnist.mnist,
        mnist.SOURCES,
        mnist.files,
    ),
    "digits": DataSet(
        "1,797 handwritten digits of 8 x 8, in this package (Alpaydin, Kaynak 1998)",
        DIGITS,
        lambda _: digits(np.random.default_rng(0)),
    ),
}


def dataset_named(name: str) -> DataSet:
    if name not in DATASETS:
        raise UserError(f"no data set {name!r}; there are: {', '.join(DATASETS)}")
    return DATASETS[name]


def fetched(name: str, folder: Path, progress: Progress = silent) -> list[Path]:
    """The files of a data set, downloaded if the folder lacks them, and prepared."""
    dataset = dataset_named(name)
    try:
        dataset.files(folder)
    except DataMissing:
        for source in dataset.sources:
            path = folder / source.subfolder / source.name
            if not path.exists():
                dataset.check(download(source, folder, progress))
    dataset.prepare(folder, progress)
    return dataset.files(folder)


def loaded(
    name: str, folder: Path | None, progress: Progress = silent
) -> Features | Images | Texts:
    """Read a data set by name, after a download if the folder lacks it."""
    dataset = dataset_named(name)
    if not dataset.sources:
        return dataset.load(Path())
    fetched(name, required(folder), progress)
    return dataset.load(required(folder))


def required(folder: Path | None) -> Path:
    if folder is None:
        raise UserError("name the data folder: --data FOLDER or DEFL_DATA")
    return folder
