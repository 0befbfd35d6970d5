"""Texts as bags of words: which words a text has, hashed to the pixels of a small binary image.

Models and attacks that know images alone then work on texts. (K. Weinberger et al., Feature Hashing
for Large Scale Multitask Learning, ICML 2009.)
"""

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b

import numpy as np

from defl.lab.datasets.task import Bytes, Images, Texts

SIDE = 32  # 1,024 pixels: as large a model as that for MNIST


def hashed_words(texts: Texts) -> Images:
    return Images(
        _images(texts.train_texts),
        texts.train_labels,
        _images(texts.test_texts),
        texts.test_labels,
        texts.classes,
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
