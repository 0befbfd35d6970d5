"""Nodes are asked for their status at once, and never longer than a page waits."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from defl.dashboard import asking
from defl.dashboard.asking import Answer, Asking, wait_for
from defl.dashboard.feed import Feed
from defl.node.files import PORT_FILE, TOKEN_FILE
from defl.node.report.status import NodeStatus
from defl.node.report.status_client import running_status
from support.made_history import add_facts, found_nodes, round_of, started
from support.statuses import NEW

WAIT_S = 30.0


class Nodes:
    """Answers in place of nodes, once they may."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self.all_asked = threading.Barrier(3)

    def together(self, folder: Path) -> NodeStatus:
        """Nobody answers before all three are asked."""
        self.all_asked.wait(WAIT_S)
        self.asked.append(folder.name)
        return NEW

    def slow(self, folder: Path) -> NodeStatus:
        self.asked.append(folder.name)
        assert self.may_answer.wait(WAIT_S)
        return NEW


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.may_answer.set()


def test_all_are_asked_at_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "running_status", nodes.together)
    asked = [Asking(Path(name)) for name in ("alice", "bob", "carol")]
    for each in asked:
        each.ask("")
    wait_for(asked)

    assert sorted(nodes.asked) == ["alice", "bob", "carol"]
    assert [each.answer.status for each in asked] == [NEW] * 3


def test_a_node_that_hangs_delays_nobody_and_is_asked_once(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "running_status", nodes.slow)
    monkeypatch.setattr(asking, "SILENT_S", 0.0)
    monkeypatch.setattr(asking, "ANSWER_WAIT_S", 0.0)
    alice = Asking(Path("alice"))
    for _ in range(3):
        alice.ask("")
        alice.wait(0.0)
        assert alice.answer == Answer()
    assert nodes.asked == ["alice"]

    nodes.may_answer.set()
    monkeypatch.setattr(asking, "ANSWER_WAIT_S", WAIT_S)
    alice.ask("")
    alice.wait(0.0)
    assert alice.answer.status == NEW


def test_a_slow_answer_leaves_the_one_before(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.may_answer.set()
    monkeypatch.setattr(asking, "running_status", nodes.slow)
    alice = Asking(Path("alice"))
    alice.ask("")
    alice.wait(0.0)
    nodes.may_answer.clear()
    monkeypatch.setattr(asking, "ANSWER_WAIT_S", 0.0)
    alice.ask("")
    alice.wait(0.0)

    assert alice.answer.status == NEW


def test_a_program_that_took_the_port_of_a_dead_node_and_keeps_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("defl.node.report.status_client.STATUS_WAIT_S", 0.05)
    alice, bob = found_nodes(tmp_path)[:2]
    for node in (alice, bob):
        add_facts(node, [started(), *round_of(1)])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (alice / PORT_FILE).write_text(str(silent.getsockname()[1]))
        (alice / TOKEN_FILE).write_text("t" * 32)
        overview = Feed([alice, bob], "two").overview()

    assert [node.process for node in overview.nodes] == ["does not run"] * 2


@pytest.mark.parametrize("port", ["0", "-1", "65536", "1000000000000", "7400.5", "", "\u0664"])
def test_a_port_file_with_nonsense_is_no_running_node(tmp_path: Path, port: str) -> None:
    (tmp_path / PORT_FILE).write_text(port)
    (tmp_path / TOKEN_FILE).write_text("t" * 32)

    assert running_status(tmp_path) is None
