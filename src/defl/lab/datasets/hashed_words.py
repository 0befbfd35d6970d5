"""Sentiment140 as small binary images: a pixel says whether the text has a word of that hash.

What trains on images and attacks them then works on texts too. (K. Weinberger et al., Feature
Hashing for Large Scale Multitask Learning, ICML 2009.)
"""

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np

from defl.lab.datasets.folder import Arrays, load_or_build
from defl.lab.datasets.sentiment140 import LABELS, file_digest, sentiment140
from defl.lab.datasets.task import Bytes, Images

ROWS = 200_000  # as `defl paper` draws for its small models
SIDE = 32  # 1,024 pixels: as large a model as that for MNIST


def hashed_words(path: Path, rows: int = ROWS) -> Images:
    """Built once and cached, since reading 1,600,000 texts takes long."""

    def build() -> Arrays:
        texts = sentiment140(path, rows)
        return {
            "train": _images(texts.train_texts),
            "train_labels": texts.train_labels,
            "test": _images(texts.test_texts),
            "test_labels": texts.test_labels,
        }

    arrays = load_or_build(f"hashed-words-{file_digest(path)[:32]}-{rows}-{SIDE}", build)
    return Images(
        arrays["train"].view(np.uint8),
        arrays["train_labels"].view(np.int64),
        arrays["test"].view(np.uint8),
        arrays["test_labels"].view(np.int64),
        classes=len(LABELS),
        white=1,
    )


def _images(texts: Sequence[str]) -> Bytes:
    pixels = np.zeros((len(texts), SIDE * SIDE), np.uint8)
    for row, text in zip(pixels, texts, strict=True):
        row[[_pixel(word) for word in text.split()]] = 1
    return pixels.reshape(-1, SIDE, SIDE)


@cache
def _pixel(word: str) -> int:
    hashed = blake2b(word.encode(), digest_size=8, person=b"defl/words").digest()
    return int.from_bytes(hashed, "big") % (SIDE * SIDE)
