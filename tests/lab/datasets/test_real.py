"""The real data, where `DEFL_DATA` names a folder that has it: shapes, counts, who is where."""

import os
from pathlib import Path

import numpy as np
import pytest

from defl.lab.datasets import cifar10, mnist, sentiment140
from defl.lab.datasets.folder import DataMissing

pytestmark = pytest.mark.skipif(not os.environ.get("DEFL_DATA"), reason="DEFL_DATA is not set")


@pytest.fixture
def folder() -> Path:
    return Path(os.environ["DEFL_DATA"])


def test_cifar_10_has_6000_images_of_each_class(folder: Path) -> None:
    try:
        data = cifar10.cifar10(folder)
    except DataMissing as missing:
        pytest.skip(str(missing))

    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert data.test_images.shape == (10_000, 3, 32, 32)
    assert np.bincount(data.train_labels).tolist() == [5_000] * 10
    assert np.bincount(data.test_labels).tolist() == [1_000] * 10
    # The widely used means of the channels: 0.4914, 0.4822, 0.4465.
    means = data.train_images.mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=1e-3)


def test_mnist_has_its_known_label_counts(folder: Path) -> None:
    try:
        data = mnist.mnist(folder)
    except DataMissing as missing:
        pytest.skip(str(missing))

    assert data.train_images.shape == (60_000, 28, 28)
    assert data.test_images.shape == (10_000, 28, 28)
    known = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(data.test_labels).tolist() == known


def test_sentiment140_holds_a_tenth_out_and_no_text_is_in_both_parts(folder: Path) -> None:
    try:
        [path] = sentiment140.files(folder)
    except DataMissing as missing:
        pytest.skip(str(missing))

    data = sentiment140.sentiment140(path, 100_000)

    assert len(data.train_texts) + len(data.test_texts) == 100_000
    assert 0.09 < len(data.test_texts) / 100_000 < 0.11
    assert 0.48 < data.test_labels.mean() < 0.52
    assert set(data.train_texts).isdisjoint(data.test_texts)
