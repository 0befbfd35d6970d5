"""Sentiment140 as bags of words."""

from pathlib import Path

import numpy as np
import pytest

from defl.lab.datasets.hashed_words import SIDE, hashed_words
from defl.lab.datasets.sentiment140 import TRAINING, sentiment140
from support.layouts import many_tweets, tweets


def test_a_pixel_is_set_for_each_word_of_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / TRAINING
    path.write_bytes(tweets(many_tweets(3000)))

    images, texts = hashed_words(path, 2000), sentiment140(path, 2000)

    assert images.train_images.shape == (len(texts.train_texts), SIDE, SIDE)
    np.testing.assert_array_equal(images.test_labels, texts.test_labels)
    words = [len(set(text.split())) for text in texts.test_texts]
    pixels = images.test_images.sum(axis=(1, 2))
    assert (pixels <= words).all(), "two words may share a pixel"
    assert (pixels > 0).all()
    again = hashed_words(path, 2000)
    np.testing.assert_array_equal(again.train_images, images.train_images)
