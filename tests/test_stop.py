"""`defl node stop` signals the process that holds the node's state, and no other one."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from defl.node.files import PID_FILE
from defl.node.store.storage import LOCK, Storage
from support.founding import defl
from test_first_start import alice, opened  # noqa: F401 - alice is a fixture

HOLDER = """
import os, sys
from pathlib import Path
from defl.node.store.storage import Storage
folder = Path(sys.argv[1])
storage = Storage.open(folder / "state")
(folder / "node.pid").write_text(str(os.getpid()))
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def stranger() -> Iterator["subprocess.Popen[bytes]"]:
    """An unrelated process that waits until its input ends."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_stop_with_a_stale_pid_file_kills_no_other_process(
    alice: Path,  # noqa: F811 - the fixture
    stranger: "subprocess.Popen[bytes]",
) -> None:
    opened(alice)
    (alice / PID_FILE).write_text(str(stranger.pid), encoding="ascii")
    (alice / "state" / LOCK).write_text(f"{stranger.pid}\n", encoding="ascii")

    answer = defl("node", "stop", alice)

    assert answer.code == 2
    assert "the node is not running" in answer.text
    assert stranger.poll() is None


def test_stop_signals_only_the_process_that_holds_the_lock(
    alice: Path,  # noqa: F811 - the fixture
    stranger: "subprocess.Popen[bytes]",
) -> None:
    opened(alice)
    (alice / PID_FILE).write_text(str(stranger.pid), encoding="ascii")

    with Storage.open(alice / "state"):  # as an export does; a signal would end this test
        answer = defl("node", "stop", alice)

    assert answer.code == 2
    assert f"process {os.getpid()} holds its state" in answer.text
    assert stranger.poll() is None


def test_a_node_that_never_ran_is_not_running(
    alice: Path,  # noqa: F811 - the fixture
) -> None:
    assert "the node is not running" in defl("node", "stop", alice).text


def test_stop_signals_the_process_that_holds_the_state(
    alice: Path,  # noqa: F811 - the fixture
) -> None:
    opened(alice)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(alice)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"holds\n"

    answer = defl("node", "stop", alice, "--json")

    assert (answer.code, answer.json) == (0, {"asked": holder.pid})
    assert holder.wait(30) == -signal.SIGTERM
    holder.communicate()
