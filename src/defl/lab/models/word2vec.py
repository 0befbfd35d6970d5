"""Word vectors by gensim's Word2Vec (Mikolov et al., 2013).

With one worker and a seed, gensim's training is a function of the texts alone; Python's hash seed
does not matter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from defl.clients.extras import install_command
from defl.errors import UserError
from defl.lab.datasets.words import FIRST_WORD, PADDING, Vocabulary


@dataclass(frozen=True, slots=True)
class Word2VecSettings:
    """The paper's settings; count_min, which it does not state, is gensim's default."""

    size: int = 300
    window: int = 7
    iterations: int = 32
    count_min: int = 5
    seed: int = 1


@dataclass(frozen=True, slots=True)
class WordVectors:
    """A vocabulary and one row of `vectors` for each of its numbers; padding's row is zero."""

    vocabulary: Vocabulary
    vectors: NDArray[np.float32]  # (words + 2, size)


class _Words:
    """Texts as lists of words, split anew in each pass: all lists at once would fill the memory."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def __iter__(self) -> Iterator[list[str]]:
        return (text.split() for text in self._texts)


def train_vectors(texts: Sequence[str], settings: Word2VecSettings) -> WordVectors:
    """Vectors of the words in these texts; a word outside the vocabulary gets their mean."""
    try:
        from gensim.models import Word2Vec  # noqa: PLC0415 - an extra, heavy to import
    except ImportError as wrong:
        raise UserError(f"word vectors need gensim: {install_command('paper')}") from wrong
    model = Word2Vec(
        vector_size=settings.size,
        window=settings.window,
        min_count=settings.count_min,
        seed=settings.seed,
        workers=1,
    )
    words = _Words(texts)
    model.build_vocab(words)
    if not model.wv.index_to_key:
        raise UserError(f"no word occurs {settings.count_min} times in these {len(texts)} texts")
    model.train(words, total_examples=model.corpus_count, epochs=settings.iterations)
    known = model.wv.vectors.astype(np.float32)
    vectors = np.empty((len(known) + FIRST_WORD, settings.size), np.float32)
    vectors[FIRST_WORD:] = known
    vectors[:FIRST_WORD] = known.mean(axis=0)
    vectors[PADDING] = 0
    return WordVectors(Vocabulary(tuple(model.wv.index_to_key)), vectors)
