"""A first start may be killed anywhere; a state lost later is never recreated."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from defl.errors import LocalFault, UserError
from defl.node.files import STARTED_FILE
from defl.node.node import Node
from defl.node.report.log import Log
from defl.node.startup import LOST, open_node
from defl.node.store.records import DATABASE
from defl.node.store.storage import USED, Storage
from support.founding import agree, init_nodes


@pytest.fixture
def alice(tmp_path: Path) -> Path:
    agree(tmp_path, init_nodes(tmp_path))
    folder = tmp_path / "alice"
    for name in ("federation.toml", "initial.safetensors"):
        shutil.copy(tmp_path / name, folder)
    return folder


def opened(folder: Path, *, observer: bool = False) -> Node:
    node = open_node(folder, Log(), observer=observer)
    node.storage.close()
    return node


# Each first start runs in its own process, which kills itself just before the k-th call that
# changes files: open, mkdir, rename, remove, SQLite's connect. Prints the exit codes of the first
# and the second start for each k; the last k is the start that was not killed.
KILLER = """
import io, itertools, json, os, shutil, signal, sys
from pathlib import Path
from defl.node.startup import LOST, open_node
from defl.node.report.log import Log

STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.chmod", "sqlite3.connect", "fcntl.flock"}
template = Path(sys.argv[1])

def start(folder, kill_at):
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        return os.waitstatus_to_exitcode(status)
    steps = itertools.count()
    def before(event, arguments):
        if event in STEPS and str(folder) in str(arguments) and next(steps) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(before)
    try:
        node = open_node(folder, Log())
        os._exit(0 if node.participant.replica.observing is None else 3)
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(4)

results = []
for step in itertools.count():
    folder = template.with_name(f"alice{step}")
    shutil.copytree(template, folder)
    first = start(folder, step)
    results.append((first, start(folder, -1)))
    shutil.rmtree(folder)
    if first == 0:
        break
print(json.dumps(results))
"""


def test_a_first_start_killed_at_any_step_can_be_repeated(alice: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(alice)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    results = json.loads(done.stdout)

    assert len(results) > 20  # it was killed at that many steps
    assert all(first == -9 for first, _ in results[:-1])
    assert [second for _, second in results] == [0] * len(results), done.stderr


def test_a_first_start_with_wrong_initial_weights_can_be_repeated(alice: Path) -> None:
    right = alice / "initial.safetensors"
    away = right.rename(alice / "right")
    with pytest.raises(UserError, match="no such file"):
        opened(alice)
    away.rename(right)

    assert opened(alice).participant.replica.observing is None


@pytest.mark.parametrize("lost", ["state", f"state/{DATABASE}"])
def test_a_state_lost_after_the_first_start_is_never_recreated(alice: Path, lost: str) -> None:
    opened(alice)
    path = alice / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    for _ in range(2):
        with pytest.raises(UserError, match=r"is gone, and with it the record .*--observer"):
            opened(alice)
    node = opened(alice, observer=True)

    assert node.participant.replica.observing is not None


def test_a_node_is_marked_as_started_only_when_its_state_is_complete(
    alice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        assert not (alice / STARTED_FILE).exists()
        raise LocalFault("no room")

    monkeypatch.setattr(Storage, "create", full)
    with pytest.raises(LocalFault, match="no room"):
        opened(alice)
    assert not (alice / STARTED_FILE).exists()
    monkeypatch.undo()

    opened(alice)

    assert (alice / STARTED_FILE).exists()
    assert (alice / "state" / USED).exists()


def test_the_log_of_a_lost_database_is_not_read_into_the_next_one(alice: Path) -> None:
    node = open_node(alice, Log())
    node.storage.records.observe("so that the log holds something")
    log = (alice / "state" / f"{DATABASE}-wal").read_bytes()
    node.storage.close()
    (alice / "state" / DATABASE).unlink()
    (alice / "state" / f"{DATABASE}-wal").write_bytes(log)

    opened(alice, observer=True)
    with Storage.open(alice / "state") as storage:
        record = storage.recovered().record
    assert record is not None
    assert record.observing == LOST


def test_a_node_with_its_state_can_be_started_as_an_observer(alice: Path) -> None:
    """For an operator who restored an old copy by mistake and must prevent it from signing."""
    opened(alice)

    assert "--observer" in (opened(alice, observer=True).participant.replica.observing or "")
    assert opened(alice).participant.replica.observing is not None
