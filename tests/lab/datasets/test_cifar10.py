"""CIFAR-10 from its official layout: folder or archive, each batch checked before it is read."""

from pathlib import Path

import numpy as np
import pytest

from defl.errors import UserError
from defl.lab.datasets import cifar10 as cifar
from defl.lab.datasets.cifar10 import BATCHES, OFFICIAL_MD5, cifar10
from support.layouts import cifar_archive, tiny_cifar


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_archive_format_gives_the_same_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, sums = tiny_cifar()
    read = []
    for packing in ("folder", "gz", "xz"):
        folder = tmp_path / packing
        (folder / "cifar-10").mkdir(parents=True)
        if packing == "folder":
            (folder / BATCHES).mkdir()
            for name, data in batches.items():
                (folder / BATCHES / name).write_bytes(data)
        else:
            cifar_archive(folder / "cifar-10" / f"cifar-10-python.tar.{packing}", batches)
        monkeypatch.setenv("DEFL_CACHE", str(tmp_path / f"cache-{packing}"))
        read.append(cifar10(folder, sums))

    for images in read:
        assert images.train_images.shape == (20, 3, 32, 32)
        assert images.test_images.shape == (4, 3, 32, 32)
        np.testing.assert_array_equal(images.train_images[:, 0, 0, 0], images.train_labels)
        np.testing.assert_array_equal(images.test_labels, [5, 6, 7, 8])
        np.testing.assert_array_equal(images.train_images, read[0].train_images)


def test_second_read_uses_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, sums = tiny_cifar()
    cifar_archive(tmp_path / "cifar-10-python.tar.gz", batches)
    first = cifar10(tmp_path, sums)
    monkeypatch.setattr(cifar, "batches_of", None)  # reading the archive again would fail

    second = cifar10(tmp_path, sums)

    np.testing.assert_array_equal(first.train_images, second.train_images)
    assert isinstance(second.train_images, np.memmap)
    second.train_images[0] = 0
    np.testing.assert_array_equal(cifar10(tmp_path, sums).train_images, first.train_images)


def test_batch_with_wrong_md5_is_refused_and_not_cached(tmp_path: Path, cache: Path) -> None:
    batches, sums = tiny_cifar()
    batches["data_batch_3"] = batches["data_batch_4"]
    cifar_archive(tmp_path / "cifar-10-python.tar.gz", batches)

    with pytest.raises(UserError, match=r"data_batch_3 .* official md5"):
        cifar10(tmp_path, sums)

    assert not cache.exists()


def test_default_checksums_are_the_official_ones(tmp_path: Path) -> None:
    cifar_archive(tmp_path / "cifar-10-python.tar.gz", tiny_cifar()[0])

    with pytest.raises(UserError, match=OFFICIAL_MD5["data_batch_1"]):
        cifar10(tmp_path)


def test_missing_batch_and_broken_archives_are_clear_errors(tmp_path: Path) -> None:
    batches, sums = tiny_cifar()
    path = tmp_path / "cifar-10-python.tar.gz"
    cifar_archive(path, {name: data for name, data in batches.items() if name != "data_batch_2"})
    with pytest.raises(UserError, match="no data_batch_2"):
        cifar10(tmp_path, sums)
    cifar_archive(path, batches)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(UserError, match="not a whole tar"):
        cifar10(tmp_path, sums)
    path.write_bytes(b"no archive at all")
    with pytest.raises(UserError, match="not a whole tar"):
        cifar10(tmp_path, sums)


def test_empty_folder_is_reported_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"DEFL_DATA.*defl data fetch cifar-10"):
        cifar10(tmp_path)


def test_unwritable_cache_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, sums = tiny_cifar()
    cifar_archive(tmp_path / "cifar-10-python.tar.gz", batches)
    (tmp_path / "file").touch()
    monkeypatch.setenv("DEFL_CACHE", str(tmp_path / "file" / "cache"))

    with pytest.raises(UserError, match="DEFL_CACHE"):
        cifar10(tmp_path, sums)
