"""Data sets in memory: samples and labels, split into a training and a test part."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Images:
    """Images as stored, in bytes; `scaled` converts to numbers from 0 to 1."""

    train_images: Bytes  # (count, height, width) or (count, channels, height, width)
    train_labels: Labels
    test_images: Bytes
    test_labels: Labels
    classes: int
    white: int = 255  # the value of full brightness

    def scaled(self, images: Bytes) -> NDArray[np.float32]:
        return np.divide(images, self.white, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Features:
    """Rows of numbers: what the frozen part of a model has computed from images or texts."""

    train: NDArray[np.float16] | NDArray[np.float32]  # (count, features)
    train_labels: Labels
    test: NDArray[np.float16] | NDArray[np.float32]
    test_labels: Labels
    classes: int


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts as lower-case words separated by one blank; no text is in both parts."""

    train_texts: list[str]
    train_labels: Labels
    test_texts: list[str]
    test_labels: Labels
    classes: int


@dataclass(frozen=True, slots=True)
class Sentences:
    """Texts as numbers of words in a vocabulary, padded with 0 at the end to one length."""

    train_words: NDArray[np.int32]  # (count, length)
    train_labels: Labels
    test_words: NDArray[np.int32]
    test_labels: Labels
    classes: int
