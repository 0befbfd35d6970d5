"""Files that are counted while they are written."""

from pathlib import Path

import pytest

from defl.lab.baselines.machine import Store
from defl.lab.baselines.stored import STORED, StoredFiles


def test_reader_sees_the_old_or_the_new_file_never_a_partial_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = StoredFiles(tmp_path)
    stored.put(Store("chain/1", b"12345"))
    counted: list[tuple[int, list[str]]] = []
    replace = Path.replace

    def count_and_replace(self: Path, target: Path) -> Path:
        names = [path.name for path in (tmp_path / STORED).rglob("*") if path.is_file()]
        counted.append((stored.bytes, names))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", count_and_replace)
    stored.put(Store("chain/1", b"123456789"))

    assert counted == [(5, ["1"])]  # the new file is written, but nothing of it is there to count
    assert stored.bytes == 9
