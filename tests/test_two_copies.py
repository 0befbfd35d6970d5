"""Real processes: a node's folder is copied and started beside it, or the node starts again."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from defl.node.setup.config import CONFIG_FILE, node_text, read_node
from defl.node.setup.local import Local, free_ports
from support.changing_nodes import ChangingNodes

MEMBERS = (0, 1, 2, 3)


class CopiedNodes(ChangingNodes):
    """Four members; a copy of one has the next number."""

    def copy(self, member: int) -> int:
        """As on another machine: only the port where it listens differs."""
        original = self.local.nodes[member]
        at = original.with_name(f"copy-of-{original.name}")
        shutil.copytree(original, at)
        config = replace(read_node(at), listen=f"127.0.0.1:{free_ports(1)[0]}")
        (at / CONFIG_FILE).write_text(node_text(config), encoding="utf-8")
        (at / "node.log").unlink(missing_ok=True)
        self.local = Local(self.local.folder, (*self.local.nodes, at))
        return len(self.local.nodes) - 1

    def until_ended(self, member: int) -> int:
        """Its exit code."""
        self._killed.add(member)  # its code is no failure
        self.until(lambda: not self.running(member))
        return self._processes[member].returncode

    def send(self, member: int, number: signal.Signals) -> None:
        os.kill(self.pid(member), number)

    def require_progress(self, *members: int) -> None:
        before = self.round(members[0])
        self.until(lambda: all(self.round(member) >= before + 2 for member in members))
        for member in members:
            status = self.known(member)
            assert (status.evidence, status.observing, status.elsewhere) == ([], None, None)

    def is_connected_with_all(self, member: int) -> bool:
        status = self.status(member)
        return status is not None and all(status.peers.values())


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[CopiedNodes]:
    federation = CopiedNodes(tmp_path / "federation")
    yield federation
    federation.close()


@pytest.mark.parametrize("member", [0, 3], ids=["dials all", "is dialled by all"])
def test_a_copy_refuses_to_run_beside_its_original(nodes: CopiedNodes, member: int) -> None:
    copy = nodes.copy(member)
    nodes.start(*MEMBERS)
    nodes.until(lambda: all(nodes.round(member) >= 1 for member in MEMBERS))
    nodes.start(copy)
    assert nodes.until_ended(copy) == 2

    status = nodes.known(copy)
    assert status.elsewhere is not None
    assert "this node's key is in use elsewhere" in status.elsewhere
    assert status.round <= nodes.round(member)
    log = (nodes.local.nodes[copy] / "node.log").read_text()
    assert status.elsewhere in log.splitlines()[-1]
    nodes.require_progress(*MEMBERS)


def test_a_node_that_is_killed_and_started_at_once_is_admitted(nodes: CopiedNodes) -> None:
    nodes.start(*MEMBERS)
    nodes.until(lambda: nodes.round(0) >= 1)
    for member in (0, 3):
        nodes.kill(member)
        nodes.start(member)
        nodes.require_progress(member, 1)


def test_a_suspended_node_whose_place_a_copy_has_taken_stops_when_it_wakes(
    nodes: CopiedNodes,
) -> None:
    nodes.start(*MEMBERS)
    nodes.until(lambda: nodes.round(0) >= 1)
    nodes.send(0, signal.SIGSTOP)
    copy = nodes.copy(0)
    nodes.start(copy)
    nodes.until(lambda: nodes.is_connected_with_all(copy))
    nodes.send(0, signal.SIGCONT)
    assert nodes.until_ended(0) == 2
    assert nodes.known(0).elsewhere is not None
    nodes.require_progress(copy, 1, 2, 3)
