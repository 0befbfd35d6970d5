"""Word vectors and numbered texts: the same each time, made once, then taken from the cache."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from defl.errors import UserError
from defl.lab.datasets.words import FIRST_WORD, PADDING, UNKNOWN
from defl.lab.models import sentences as module
from defl.lab.models.sentences import SentenceSettings, sentences
from defl.lab.models.word2vec import Word2VecSettings, train_vectors

pytest.importorskip("gensim", reason="word vectors are gensim's (extra `paper`)")

SMALL = Word2VecSettings(size=8, window=3, iterations=2, count_min=2)
TEXTS = [f"word{i % 7} likes word{(i * 3 + 1) % 7} but not word{i % 5}" for i in range(60)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        f'"{target}","","","NO_QUERY","","{mood} word{i % 7} word{i % 11} {i}"'
        for target, mood in (("0", "sad"), ("4", "glad"))
        for i in range(200)
    ]
    (tmp_path / "sentiment140").mkdir()
    (tmp_path / "sentiment140" / "tiny.csv").write_text("\n".join(rows), encoding="latin-1")
    return tmp_path


def fingerprint() -> str:
    made = train_vectors(TEXTS, SMALL)
    return sha256(" ".join(made.vocabulary.words).encode() + made.vectors.tobytes()).hexdigest()


def test_default_settings_are_the_papers() -> None:
    assert Word2VecSettings() == Word2VecSettings(size=300, window=7, iterations=32)
    assert SentenceSettings() == SentenceSettings(rows=None, length=60)


def test_vectors_do_not_depend_on_the_hash_seed() -> None:
    folder = Path(__file__).parent
    other = subprocess.run(
        [sys.executable, "-c", "import test_word2vec as t; print(t.fingerprint())"],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )

    assert other.stdout.strip() == fingerprint()


def test_padding_is_zero_and_unknown_words_get_the_mean() -> None:
    made = train_vectors([*TEXTS, "once"], SMALL)

    assert "once" not in made.vocabulary.words
    assert made.vectors.shape == (len(made.vocabulary.words) + FIRST_WORD, SMALL.size)
    assert not made.vectors[PADDING].any()
    mean = made.vectors[FIRST_WORD:].mean(axis=0)
    np.testing.assert_allclose(made.vectors[UNKNOWN], mean, rtol=1e-6)


def test_texts_without_a_frequent_word_are_a_clear_error() -> None:
    with pytest.raises(UserError, match="no word occurs 2 times"):
        train_vectors(["each word differs"], SMALL)


def test_numbered_texts_fit_their_vectors_and_labels(folder: Path) -> None:
    made, vectors = sentences(folder, SentenceSettings(length=6, word2vec=SMALL))

    assert len(made.train_words) + len(made.test_words) == 400
    assert made.train_words.shape == (len(made.train_labels), 6)
    assert made.train_words.max() < len(vectors.vectors)
    words = (None, None, *vectors.vocabulary.words)
    moods = [words[row[0]] for row in made.train_words]
    assert moods == [("sad", "glad")[label] for label in made.train_labels]


def test_vectors_are_cached_by_their_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SentenceSettings(rows=300, length=6, word2vec=SMALL)
    first, vectors = sentences(folder, settings)
    monkeypatch.setattr(module, "train_vectors", None)  # training would fail now

    second, again = sentences(folder, settings)

    np.testing.assert_array_equal(first.train_words, second.train_words)
    np.testing.assert_array_equal(vectors.vectors, again.vectors)
    assert vectors.vocabulary == again.vocabulary
    for other in (
        SentenceSettings(rows=302, length=6, word2vec=SMALL),
        SentenceSettings(rows=300, length=7, word2vec=SMALL),
        SentenceSettings(rows=300, length=6, word2vec=Word2VecSettings(size=9, iterations=2)),
    ):
        with pytest.raises(TypeError):
            sentences(folder, other)


def test_cache_distinguishes_source_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SentenceSettings(length=6, word2vec=SMALL)
    sentences(folder, settings)
    path = folder / "sentiment140" / "tiny.csv"
    path.write_bytes(path.read_bytes().replace(b"sad", b"bad"))
    monkeypatch.setattr(module, "train_vectors", None)

    with pytest.raises(TypeError):
        sentences(folder, settings)
