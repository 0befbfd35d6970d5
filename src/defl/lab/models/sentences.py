"""Sentiment140 ready for a model: word vectors, numbered texts and their means, built once.

Building them from all rows with the paper's settings takes many minutes. The cache is named after
the source's bytes and every setting.
"""

from dataclasses import astuple, dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from defl.lab.datasets.folder import Arrays, load_or_build
from defl.lab.datasets.sentiment140 import LABELS, file_digest, files, sentiment140
from defl.lab.datasets.task import Features, Sentences
from defl.lab.datasets.words import PADDING, Vocabulary
from defl.lab.models.word2vec import Word2VecSettings, WordVectors, train_vectors


@dataclass(frozen=True, slots=True)
class SentenceSettings:
    """Which texts, how long, and how their words become vectors; the defaults are the paper's."""

    rows: int | None = None  # None: all of them
    length: int = 60
    word2vec: Word2VecSettings = field(default_factory=Word2VecSettings)


def sentences(folder: Path, settings: SentenceSettings) -> tuple[Sentences, WordVectors]:
    """Numbered texts and the vectors of their words, trained on the training texts alone."""
    [path] = files(folder)

    def build() -> Arrays:
        texts = sentiment140(path, settings.rows)
        known = train_vectors(texts.train_texts, settings.word2vec)
        encoded = known.vocabulary.encoded
        return {
            "train_words": encoded(texts.train_texts, settings.length),
            "train_labels": texts.train_labels,
            "test_words": encoded(texts.test_texts, settings.length),
            "test_labels": texts.test_labels,
            "vectors": known.vectors,
            "vocabulary": np.frombuffer("\n".join(known.vocabulary.words).encode(), np.uint8),
        }

    arrays = load_or_build(f"sentiment140-{_digest(path, settings)[:32]}", build)
    words = bytes(arrays["vocabulary"].view(np.uint8)).decode().split("\n")
    vectors = WordVectors(Vocabulary(tuple(words)), arrays["vectors"].view(np.float32))
    return Sentences(
        train_words=arrays["train_words"].view(np.int32),
        train_labels=arrays["train_labels"].view(np.int64),
        test_words=arrays["test_words"].view(np.int32),
        test_labels=arrays["test_labels"].view(np.int64),
        classes=len(LABELS),
    ), vectors


def averaged(folder: Path, settings: SentenceSettings) -> Features:
    """Each text as the mean of its word vectors: all that a deep averaging network needs of it."""
    [path] = files(folder)
    texts, known = sentences(folder, settings)

    def build() -> Arrays:
        return {
            "train": mean_vectors(texts.train_words, known.vectors),
            "test": mean_vectors(texts.test_words, known.vectors),
        }

    arrays = load_or_build(f"sentiment140-means-{_digest(path, settings)[:32]}", build)
    return Features(
        arrays["train"].view(np.float32),
        texts.train_labels,
        arrays["test"].view(np.float32),
        texts.test_labels,
        texts.classes,
    )


def mean_vectors(
    words: NDArray[np.int32], vectors: NDArray[np.float32], *, chunk: int = 1000
) -> NDArray[np.float32]:
    """Without padding; the first place of an empty text counts as a word."""
    means = np.empty((len(words), vectors.shape[1]), np.float32)
    for start in range(0, len(words), chunk):
        part = words[start : start + chunk]
        real = part != PADDING
        real[:, 0] = True
        sums = np.einsum("twv,tw->tv", vectors[part], real.astype(np.float32))
        means[start : start + chunk] = sums / real.sum(axis=1, keepdims=True)
    return means


def _digest(path: Path, settings: SentenceSettings) -> str:
    parts = (file_digest(path), settings.rows, settings.length, *astuple(settings.word2vec))
    return sha256("/".join(map(str, parts)).encode()).hexdigest()
