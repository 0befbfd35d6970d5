"""What systemd hears from a node or relay of Type=notify, on real datagram sockets."""

import asyncio
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from defl.node.report.service_manager import ServiceManager
from defl.node.setup.local import free_ports
from support.founding import NAMES, agree, init_nodes

PROCESS = 4711


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The end that systemd reads."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(60)
        yield heard


def messages(heard: socket.socket) -> list[str]:
    heard.setblocking(False)
    found = []
    while True:
        try:
            found.append(heard.recv(4096).decode())
        except BlockingIOError:
            return found


def informed(service: ServiceManager, sentences: list[str]) -> None:
    """Keeps the manager informed until the sentences are used up; nothing waits."""

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None

        def sentence() -> str:
            if len(sentences) == 1:
                task.cancel()
            return sentences.pop(0)

        await service.keep_informed(sentence)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


def test_without_a_service_manager_nothing_is_sent_and_nothing_is_computed() -> None:
    service = ServiceManager.take_from({}, PROCESS)

    service.ready()
    service.stopping()
    asyncio.run(service.keep_informed(lambda: pytest.fail("nobody listens")))


def test_children_do_not_inherit_the_socket() -> None:
    environment = {
        "NOTIFY_SOCKET": "/run/notify",
        "WATCHDOG_USEC": "3000000",
        "WATCHDOG_PID": str(PROCESS),
        "HOME": "/",
    }

    service = ServiceManager.take_from(environment, PROCESS)

    assert service == ServiceManager("/run/notify", 3.0)
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize(
    "watchdog",
    [
        {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "9" * 400},
        {"WATCHDOG_USEC": "9" * 5000},
        {"WATCHDOG_USEC": "-1"},
        {"WATCHDOG_USEC": "3s"},
        {},
    ],
    ids=["of another process", "zero", "endless", "no number", "negative", "a unit", "none"],
)
def test_the_watchdog_may_be_absent_or_meant_for_another_process(watchdog: dict[str, str]) -> None:
    environment = {"NOTIFY_SOCKET": "/run/notify", **watchdog}

    assert ServiceManager.take_from(environment, PROCESS).watchdog_s is None


def test_an_abstract_socket_hears_it() -> None:
    name = f"defl-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{name}")

        ServiceManager(f"@{name}").ready()

        assert messages(heard) == ["READY=1"]


@pytest.mark.parametrize(
    "address",
    ["{folder}/gone", "{folder}", "/dev/null", "{folder}/" + "x" * 200, "@" + "x" * 200, "@", "a"],
)
def test_an_address_where_nobody_listens_stops_nothing(tmp_path: Path, address: str) -> None:
    ServiceManager(address.format(folder=tmp_path)).ready()


def test_a_node_that_can_open_no_more_files_still_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", none_left)
    ServiceManager("/run/notify").stopping()


def test_a_name_with_a_line_break_begins_no_message_of_its_own(
    manager: socket.socket, tmp_path: Path
) -> None:
    ServiceManager(str(tmp_path / "notify")).say("waiting for eve\nREADY=1")

    assert messages(manager) == ["STATUS=waiting for eve\\nREADY=1"]


def test_the_watchdog_hears_every_turn_and_the_sentence_is_sent_when_it_changes(
    manager: socket.socket, tmp_path: Path
) -> None:
    service = ServiceManager(str(tmp_path / "notify"), watchdog_s=1e-6)

    informed(service, ["round 1", "round 1", "round 2"])

    assert messages(manager) == [
        "WATCHDOG=1", "STATUS=round 1", "WATCHDOG=1", "WATCHDOG=1", "STATUS=round 2",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_node_is_ready_when_it_listens_and_says_when_it_stops(
    manager: socket.socket, tmp_path: Path
) -> None:
    agree(tmp_path, init_nodes(tmp_path, tuple(free_ports(len(NAMES)))))
    alice = tmp_path / "alice"
    for name in ("federation.toml", "initial.safetensors"):
        shutil.copy(tmp_path / name, alice)
    node = subprocess.Popen(
        [sys.executable, "-m", "defl.cli.main", "node", "start", str(alice)],
        env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "60000000"},
    )
    try:
        assert manager.recv(4096) == b"READY=1"
        assert (alice / "telemetry.port").exists()
        assert manager.recv(4096) == b"WATCHDOG=1"
        assert manager.recv(4096).startswith(b"STATUS=")
        node.send_signal(signal.SIGTERM)
        while (message := manager.recv(4096)) != b"STOPPING=1":
            assert message == b"WATCHDOG=1" or message.startswith(b"STATUS=")
        assert node.wait(60) == 0
    finally:
        node.kill()
        node.wait()
