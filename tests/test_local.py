"""A federation on one machine: its ports stay free until its nodes bind them; failed starts are
reported."""

import socket
from pathlib import Path

import pytest

from defl.errors import UserError
from defl.lab.experiments.processes import Nodes
from defl.node.setup import local
from defl.node.setup.local import environment_of, founding_folder, free_ports
from defl.running.folders import held

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_are_distinct_and_outside_the_range_of_outgoing_connections() -> None:
    lowest = int(OUTGOING.read_text(encoding="ascii").split()[0]) if OUTGOING.exists() else 32_768
    ports = free_ports(100)

    assert len(set(ports)) == 100
    assert max(ports) < lowest


def test_a_port_in_use_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_ports(1)[0])) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(local, "PORTS", range(port, port + 1))
        with pytest.raises(UserError, match="no 1 free ports"):
            free_ports(1)


def test_nodes_get_one_blas_thread_unless_the_user_wants_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    variables = environment_of(3, 7)

    assert variables["OPENBLAS_NUM_THREADS"] == "1"
    assert variables["OMP_NUM_THREADS"] == "8"


def test_a_node_that_cannot_start_is_reported_at_once_with_the_reason(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "federation", 4, 1)
    (nodes.local.nodes[1] / "node.toml").write_text("name = 3", encoding="utf-8")
    try:
        nodes.start()
        with pytest.raises(UserError, match="node-1 ended with an error"):
            nodes.finish(60.0)
    finally:
        nodes.close()


def test_a_run_that_loses_the_race_for_a_folder_deletes_nothing_of_the_winner(
    tmp_path: Path,
) -> None:
    key = tmp_path / "node-0.key"

    def lose(folder: Path) -> None:
        """Another run has taken the folder, and has begun to write, since it was seen empty."""
        key.write_text("the winner's", encoding="utf-8")
        with held(folder), held(folder):
            raise AssertionError("held twice")

    with (
        pytest.raises(UserError, match="another run is using it"),
        founding_folder(tmp_path, "defl-test-", lose),
    ):
        raise AssertionError("the folder is the other run's")

    assert key.read_text(encoding="utf-8") == "the winner's"


def test_a_folder_that_was_filled_before_it_was_held_is_refused_and_left_alone(
    tmp_path: Path,
) -> None:
    key = tmp_path / "node-0.key"

    with (
        pytest.raises(UserError, match="not an empty folder"),
        founding_folder(
            tmp_path, "defl-test-", lambda _: key.write_bytes(b"another run's") and None
        ),
    ):
        raise AssertionError("the folder is not empty")

    assert key.exists()
