"""For tests of datasets and of documented commands: tiny files in the official layouts."""

import csv
import io
import pickle
import struct
import tarfile
from hashlib import md5
from pathlib import Path

import numpy as np

from defl.lab.datasets.cifar10 import BATCHES, OFFICIAL_MD5


class OldPickler(pickle._Pickler):
    """Pickles bytes as Python 2 pickled its strings, as the official batches have them."""

    def save_string(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)

    dispatch = {**pickle._Pickler.dispatch, bytes: save_string}  # noqa: RUF012 - as in its parent


def old_pickle(value: object) -> bytes:
    written = io.BytesIO()
    OldPickler(written, protocol=2).dump(value)
    return written.getvalue()


def cifar_batch(labels: list[int], seed: int) -> bytes:
    images = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072)).astype(np.uint8)
    images[:, 0] = labels  # lets a test check that images and labels stay together
    return old_pickle({b"data": images, b"labels": labels, b"batch_label": b"tiny"})


def tiny_cifar() -> tuple[dict[str, bytes], dict[str, str]]:
    """Six batches by name, and the md5 of each."""
    names = list(OFFICIAL_MD5)
    batches = {
        name: cifar_batch([(seed + i) % 10 for i in range(4)], seed)
        for seed, name in enumerate(names)
    }
    sums = {name: md5(data, usedforsecurity=False).hexdigest() for name, data in batches.items()}
    return batches, sums


def cifar_archive(path: Path, batches: dict[str, bytes]) -> None:
    with tarfile.open(path, f"w:{path.suffix[1:]}") as archive:
        for name, data in batches.items():
            member = tarfile.TarInfo(f"{BATCHES}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def tweets(rows: list[tuple[str, str]]) -> bytes:
    """Rows of (target, text) as the official CSV has them."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for number, (target, words) in enumerate(rows):
        writer.writerow([target, str(number), "Mon Apr 06", "NO_QUERY", "somebody", words])
    return text.getvalue().encode("latin-1")


def many_tweets(count: int) -> list[tuple[str, str]]:
    """Negative ones first, as in the official file; every third text is a repetition."""
    words = ("rain", "sun", "late", "home", "work", "game", "tired", "happy")
    rng = np.random.default_rng(7)
    rows = []
    for i in range(count):
        target, mood = ("0", "sad") if i < count // 2 else ("4", "glad")
        drawn = " ".join(rng.choice(words, 5))
        rows.append((target, f"@you {mood} {drawn} {i // 3 if i % 3 else 0}"))
    return rows
