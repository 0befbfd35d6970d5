"""Sentiment140 in its official CSV layout: target, id, date, flag, user, text; quoted, latin-1.

A. Go, R. Bhayani, L. Huang, Twitter Sentiment Classification using Distant Supervision, 2009;
for academic use. Its authors publish no checksum, so rows and columns are counted instead.

A tenth is held out, as the paper does, but by text: a text is for testing if the hash of its
words lies in the lowest tenth. Equal texts thus never part, and the split is the same in every
copy and every extract of the data.
"""

import csv
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import IO

import numpy as np

from defl.errors import UserError
from defl.lab.datasets.download import DownloadSource
from defl.lab.datasets.folder import DataMissing, find_file
from defl.lab.datasets.task import Labels, Texts
from defl.lab.datasets.words import normal

SUBFOLDER = "sentiment140"
TRAINING = "training.1600000.processed.noemoticon.csv"
ARCHIVE = "trainingandtestdata.zip"
PACKINGS = ("", ".xz", ".gz")
SOURCES = (
    DownloadSource(
        f"https://cs.stanford.edu/people/alecmgo/{ARCHIVE}",
        SUBFOLDER,
        200_000_000,  # the archive has some 80 MB
        None,
    ),
)
ROWS = 1_600_000  # of the official file; half of them have each target
COLUMNS = 6
LABELS = {"0": 0, "4": 1}  # negative, positive
TEST_TENTH = 2**64 // 10


@dataclass(frozen=True, slots=True)
class Tweets:
    """All rows of one file: texts as they stand there, and labels."""

    texts: list[str]
    labels: list[int]

    @property
    def whole(self) -> bool:
        return len(self.texts) == ROWS and sum(self.labels) * 2 == ROWS


def files(folder: Path) -> list[Path]:
    """The official file or archive, else the largest file of its layout in the subfolder."""
    names = (ARCHIVE, *(f"{TRAINING}{packing}" for packing in (*PACKINGS, ".zip")))
    if path := find_file(folder, SUBFOLDER, names):
        return [path]
    others = [
        path
        for path in sorted((folder / SUBFOLDER).glob("*"))
        if path.name.endswith((".zip", *(f".csv{packing}" for packing in PACKINGS)))
    ]
    if not others:
        raise DataMissing(SUBFOLDER, folder, f"{ARCHIVE} and no {TRAINING}")
    return [max(others, key=lambda path: path.stat().st_size)]


def file_digest(path: Path) -> str:
    """What names everything that is computed from this file."""
    digest = sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def sentiment140(path: Path, rows: int | None = None, *, seed: int = 0) -> Texts:
    """Texts of one file, or of so many of its rows, drawn at random, as many of each label."""
    tweets = read(path)
    if rows is None:
        chosen = np.arange(len(tweets.texts))
    else:
        chosen = balanced(np.array(tweets.labels), rows, np.random.default_rng(seed))
    texts = [normal(tweets.texts[i]) for i in chosen]
    labels = np.array(tweets.labels, np.int64)[chosen]
    for_test = np.array([held_out(text) for text in texts])
    if for_test.all() or not for_test.any():
        raise UserError(f"{path} has too few rows to hold a tenth out: {len(texts)}")
    return Texts(
        train_texts=[text for text, out in zip(texts, for_test, strict=True) if not out],
        train_labels=labels[~for_test],
        test_texts=[text for text, out in zip(texts, for_test, strict=True) if out],
        test_labels=labels[for_test],
        classes=len(LABELS),
    )


def held_out(text: str) -> bool:
    hashed = blake2b(text.encode(), digest_size=8, person=b"defl/held-out").digest()
    return int.from_bytes(hashed, "big") < TEST_TENTH


def balanced(labels: Labels, rows: int, rng: np.random.Generator) -> Labels:
    """Places of `rows` rows, half of them with each label, in the order of the file."""
    of_label = [np.flatnonzero(labels == label) for label in LABELS.values()]
    if rows < 2 or rows % 2 or min(map(len, of_label)) < rows // 2:
        there = 2 * min(map(len, of_label))
        raise UserError(f"rows is an even number from 2 to {there}, not {rows}")
    drawn = [rng.choice(places, rows // 2, replace=False) for places in of_label]
    return np.sort(np.concatenate(drawn))


def read(path: Path) -> Tweets:
    """All rows; the first that does not fit the layout is named."""
    texts: list[str] = []
    labels: list[int] = []
    try:
        with opened(path) as lines:
            for number, row in enumerate(csv.reader(lines), start=1):
                if len(row) != COLUMNS or row[0] not in LABELS:
                    raise UserError(
                        f"row {number} of {path} is not target (0 or 4), id, date, flag, user, text"
                    )
                if number > ROWS:
                    raise UserError(f"{path} has more than {ROWS} rows: it is not Sentiment140")
                labels.append(LABELS[row[0]])
                texts.append(row[5])
    except (csv.Error, EOFError, lzma.LZMAError, zipfile.BadZipFile, zlib.error, OSError) as error:
        raise UserError(f"{path} is not a whole CSV file ({error}): delete it") from error
    if not texts:
        raise UserError(f"{path} is empty")
    return Tweets(texts, labels)


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    with ExitStack() as stack:
        if path.suffix == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(path))
            names = [name for name in archive.namelist() if name.endswith(".csv")]
            if TRAINING not in names and len(names) != 1:
                raise UserError(f"{path} has no {TRAINING}")
            name = TRAINING if TRAINING in names else names[0]
            packed: IO[bytes] | gzip.GzipFile = stack.enter_context(archive.open(name))
        elif path.suffix == ".xz":
            packed = stack.enter_context(lzma.open(path, "rb"))
        elif path.suffix == ".gz":
            packed = stack.enter_context(gzip.open(path, "rb"))
        else:
            packed = stack.enter_context(path.open("rb"))
        yield stack.enter_context(io.TextIOWrapper(packed, encoding="latin-1", newline=""))


def require_whole(path: Path) -> None:
    """After a download, in place of a checksum."""
    tweets = read(path)
    if not tweets.whole:
        raise UserError(
            f"{path} has {len(tweets.texts)} rows, {sum(tweets.labels)} of them positive, instead "
            f"of {ROWS} and half: it is not the official file; delete it and try again"
        )
