"""Each baseline as real processes over TLS: what the transport counts is what was simulated."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from points import points

from defl.ids import NodeId, digest_of
from defl.lab.baselines import blockchain, fl, swarm, systems
from defl.lab.baselines.launch import Seats
from defl.lab.experiments.cells import Cell, run_cell
from defl.lab.experiments.threats import ATTACKED_CLIENT, environment_of, threat_named
from defl.node.net.framing import Lane

NODES = 4
ROUNDS = 2
VALUES = 3000
CHUNK_BYTES = 8192
LIMIT_S = 400.0  # seconds on an idle machine
CLIENT = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from points import PointClient

def client():
    return PointClient(int(os.environ["DEFL_NODE"]), False, {VALUES})
"""

Launch = Callable[..., Seats]


def digest(row: np.ndarray) -> str:
    return digest_of(row.tobytes()).hex()


@pytest.fixture
def launch(tmp_path: Path):
    made: list[Seats] = []
    project = tmp_path / "project"
    project.mkdir()
    (project / "pulled.py").write_text(CLIENT, encoding="utf-8")

    def start(profile: systems.Profile, environments=None, **more) -> Seats:
        seats = Seats(
            tmp_path / "run",
            project,
            "pulled:client",
            NODES,
            ROUNDS,
            profile,
            chunk_bytes=CHUNK_BYTES,
            **more,
        )
        made.append(seats)
        seats.start(environments)
        return seats

    yield start
    for seats in made:
        seats.close()


@pytest.mark.parametrize(
    ("system", "profile"),
    [("fl", fl.FlProfile()), ("swarm", swarm.SwarmProfile()), ("biscotti", blockchain.PAPER)],
    ids=["fl", "swarm", "biscotti"],
)
def test_real_and_virtual_seats_send_and_store_the_same_bytes(
    system: str, profile: systems.Profile, launch: Launch
) -> None:
    rule = "multi_krum" if system == "biscotti" else "fed_avg"
    states = launch(profile, aggregation=rule).finish(LIMIT_S)
    virtual = run_cell(Cell(system, NODES, ROUNDS, chunk_bytes=CHUNK_BYTES), points(VALUES))

    for lane in Lane:
        for way in ("sent", "received"):
            real = sum(state["traffic"][lane.value][way] for state in states)
            assert real == sum(getattr(seat, way)[lane] for seat in virtual.traffic)
    assert sum(state["weights_sent"] for state in states) == virtual.weights_sent
    assert [state["disk_bytes"] for state in states] == list(virtual.stored)
    assert [state["refused"] for state in states] == [0] * len(states)
    assert {state["model"] for state in states[:NODES]} == {digest(virtual.model)}
    assert states[0]["round"] == ROUNDS


def test_attacked_and_absent_nodes_behave_as_in_the_simulator(
    launch: Launch, tmp_path: Path
) -> None:
    threat = threat_named("sign_flip_4")
    settings = environment_of(threat, "pulled:client", tmp_path / "project", seed=1)
    seats = launch(
        fl.FlProfile(round_timeout_s=2.0),
        {3: settings},
        others={3: ATTACKED_CLIENT},
        absent=(2,),
    )
    states = seats.finish(LIMIT_S)

    assert states[2] == {}
    assert [states[seat]["round"] for seat in (0, 1, 3, 4)] == [ROUNDS] * 4
    virtual = run_cell(
        Cell("fl", NODES, ROUNDS, threats={NodeId(2): "silent", NodeId(3): "sign_flip_4"}),
        points(VALUES),
    )
    assert states[0]["model"] == digest(virtual.model)


def test_seat_ends_when_its_launcher_is_killed(tmp_path: Path) -> None:
    """Here it is gone before the seat begins; test_orphans.py has the later death."""
    somebody_else = os.getppid()
    command = [sys.executable, "-m", "defl.lab.baselines.process", tmp_path / "run", "0"]

    done = subprocess.run([*command, str(somebody_else)], check=False, timeout=LIMIT_S)

    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []
