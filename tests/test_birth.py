"""A key signs only if it comes with its birth record, and it is born once."""

import shutil
from pathlib import Path

import pytest

from defl.node.report.log import Log
from defl.node.startup import open_node
from defl.node.store.birth import BIRTH_FILE, consume_birth, has_birth, write_birth
from support.founding import agree, init_nodes

KEY, OTHER = bytes(32), bytes([1]) * 32


@pytest.fixture
def alice(tmp_path: Path) -> Path:
    agree(tmp_path, init_nodes(tmp_path))
    folder = tmp_path / "alice"
    for name in ("federation.toml", "initial.safetensors"):
        shutil.copy(tmp_path / name, folder)
    return folder


def observing(folder: Path) -> str | None:
    node = open_node(folder, Log())
    node.storage.close()
    return node.participant.replica.observing


def test_a_birth_record_is_of_one_key_and_is_used_up(tmp_path: Path) -> None:
    assert not has_birth(tmp_path, KEY)
    write_birth(tmp_path, KEY)

    assert has_birth(tmp_path, KEY)
    assert not has_birth(tmp_path, OTHER)
    consume_birth(tmp_path)
    assert not has_birth(tmp_path, KEY)
    consume_birth(tmp_path)


def test_a_new_key_signs_and_its_birth_record_is_gone(alice: Path) -> None:
    assert (alice / BIRTH_FILE).exists()

    assert observing(alice) is None
    assert not (alice / BIRTH_FILE).exists()
    assert observing(alice) is None


@pytest.mark.parametrize("record", [None, b"", b"defl-birth-1 00\n"])
def test_a_key_from_a_backup_never_signs(alice: Path, record: bytes | None) -> None:
    birth = alice / BIRTH_FILE
    birth.unlink() if record is None else birth.write_bytes(record)

    for _ in range(2):
        reason = observing(alice)
        assert reason is not None
        assert "birth record" in reason
        assert "defl federation propose --replace-key" in reason


def test_a_birth_record_that_a_crash_left_does_not_give_a_second_state(alice: Path) -> None:
    """A kill between the two: the state exists, and its birth record is still there."""
    birth = (alice / BIRTH_FILE).read_bytes()
    assert observing(alice) is None
    (alice / BIRTH_FILE).write_bytes(birth)

    assert observing(alice) is None
    assert not (alice / BIRTH_FILE).exists()
