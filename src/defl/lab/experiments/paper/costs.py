"""Figures 2 and 3: memory, storage and traffic of real processes, one for each node, over TLS.

Memory is the sum over all processes of a system, nodes and workers, with shared pages counted once
(Linux's PSS). Storage is what the nodes have on disk at the end; "log" is the part that the paper
measured: the chain or log, without weights stored beside it.
"""

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from defl.clients.protocol import Client
from defl.committee import Timing
from defl.errors import UserError
from defl.ids import NodeId
from defl.lab.baselines import systems
from defl.lab.baselines.launch import Seats
from defl.lab.baselines.stored import STORED
from defl.lab.experiments.cells import DEFL, SYSTEMS
from defl.lab.experiments.paper.memory import MemoryWatch
from defl.lab.experiments.paper.settings import DIRICHLET, NODES
from defl.lab.models.learning import Learning
from defl.lab.partition import divide
from defl.node.report.status_client import last_status
from defl.node.setup.agreement import read_federation
from defl.node.setup.local import FEDERATION_FILE, make_local
from defl.node.setup.processes import Processes
from defl.node.store.storage import BLOBS

LIMIT_S = 7200.0
POLL_S = 0.5
# Rounds close only because all nodes have updated, also on a busy machine.
TIMING = Timing(view_base_s=2.0, gst_lt_min_s=600.0, gst_lt_max_s=3600.0, grace_s=60.0)
CLIENT = '''"""The client of a node whose costs are measured."""

from defl.lab.experiments.paper.costs import client_of


def client():
    return client_of({text!r})
'''


class CostResult(Struct, frozen=True, tag="costs"):
    model_bytes: int
    memory_bytes: int | None  # peak of the sum over all processes; None: not available here
    gpu_bytes: int | None
    stored_bytes: tuple[int, ...]  # by seat; a server or ordering service comes last
    log_bytes: tuple[int, ...]
    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]
    seconds: float


class CostCell(Struct, frozen=True, tag="costs"):
    system: str
    nodes: int
    rounds: int
    learning: Learning
    seed: int = 1

    @property
    def effort(self) -> float:
        """In the unit of AccuracyCell.effort: steps of training."""
        return float(self.nodes * (4000 + self.rounds * (200 + self.learning.steps)))

    def run(self, data: Path | None) -> CostResult:
        with tempfile.TemporaryDirectory(prefix="defl-paper-") as temporary:
            folder = Path(temporary)
            project = folder / "project"
            project.mkdir()
            folder_named = None if data is None else str(data.resolve())
            text = msgspec.json.encode(ClientSettings(self.learning, self.seed, folder_named))
            client = CLIENT.format(text=text.decode())
            (project / "measured.py").write_text(client, encoding="utf-8")
            run = self._defl if self.system == DEFL else self._baseline
            return run(folder / "run", project)

    def _defl(self, folder: Path, project: Path) -> CostResult:
        folder.mkdir()
        local = make_local(
            folder,
            project,
            "measured:client",
            self.nodes,
            self.rounds,
            timing=TIMING,
            aggregation=SYSTEMS[DEFL],
        )
        processes = Processes(local)
        started = time.monotonic()
        watch = MemoryWatch()
        try:
            processes.start()
            while processes.any_running:
                processes.require_no_failure()
                watch.look([processes.pid(member) for member in processes.members])
                _within_limit(started)
                time.sleep(POLL_S)
            processes.require_no_failure()
        finally:
            processes.close()
        states = [status for node in local.nodes if (status := last_status(node)) is not None]
        _require_rounds([status.round for status in states], self.rounds, self.nodes)
        blobs = [_bytes_in((node / "state" / BLOBS).rglob("*")) for node in local.nodes]
        stored = [status.disk_bytes for status in states]
        return CostResult(
            model_bytes=_model_bytes(folder),
            memory_bytes=watch.peak_bytes,
            gpu_bytes=watch.gpu_peak_bytes,
            stored_bytes=tuple(stored),
            log_bytes=tuple(all_ - blob for all_, blob in zip(stored, blobs, strict=True)),
            sent_bytes=tuple(status.sent_bytes for status in states),
            received_bytes=tuple(status.received_bytes for status in states),
            seconds=time.monotonic() - started,
        )

    def _baseline(self, folder: Path, project: Path) -> CostResult:
        seats = Seats(
            folder,
            project,
            "measured:client",
            self.nodes,
            self.rounds,
            systems.PAPER[self.system],
            aggregation=SYSTEMS[self.system],
            seed=self.seed,
        )
        started = time.monotonic()
        watch = MemoryWatch()
        try:
            seats.start()
            while not seats.settled:
                seats.require_no_failure()
                watch.look(seats.pids)
                _within_limit(started)
                time.sleep(POLL_S)
            states = seats.finish(LIMIT_S)
        finally:
            seats.close()
        closed = [int(state.get("round", 0)) for state in states[: self.nodes]]
        _require_rounds(closed, self.rounds, self.nodes)
        stored = [folder / name / STORED for name in seats.names]
        return CostResult(
            model_bytes=_model_bytes(folder),
            memory_bytes=watch.peak_bytes,
            gpu_bytes=watch.gpu_peak_bytes,
            stored_bytes=tuple(int(state["disk_bytes"]) for state in states),
            log_bytes=tuple(
                sum(_bytes_in((place / part).rglob("*")) for part in ("chain", "log"))
                for place in stored
            ),
            sent_bytes=_lanes(states, "sent"),
            received_bytes=_lanes(states, "received"),
            seconds=time.monotonic() - started,
        )


def planned(learning: Learning, rounds: int, names: Iterable[str]) -> list[CostCell]:
    return [CostCell(name, nodes, rounds, learning) for nodes in NODES for name in names]


def _model_bytes(folder: Path) -> int:
    return 4 * read_federation(folder / FEDERATION_FILE).federation.schema.values


def _bytes_in(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def _lanes(states: list[dict[str, Any]], way: str) -> tuple[int, ...]:
    return tuple(sum(int(lane[way]) for lane in state["traffic"].values()) for state in states)


def _require_rounds(closed: list[int], rounds: int, nodes: int) -> None:
    if closed != [rounds] * nodes:
        raise UserError(f"some nodes lack the model of round {rounds}; last rounds: {closed}")


def _within_limit(started: float) -> None:
    if time.monotonic() - started > LIMIT_S:
        raise UserError(f"the processes did not finish within {LIMIT_S:.0f} s")


# --- In the processes that are measured ------------------------------------------------------


class ClientSettings(Struct, frozen=True):
    learning: Learning
    seed: int
    data: str | None


def client_of(text: str) -> Client:
    """The client of the node that this process is; non-i.i.d., as in the paper's figures."""
    from defl.lab.models.learner import learner_of, reproducible  # noqa: PLC0415 - slow, extra

    settings = msgspec.json.decode(text, type=ClientSettings)
    node, nodes = int(os.environ["DEFL_NODE"]), int(os.environ["DEFL_NODES"])
    reproducible()
    learner = learner_of(settings.learning, None if settings.data is None else Path(settings.data))
    rng = np.random.default_rng([settings.seed, nodes])
    parts = divide(learner.samples.train_labels, nodes, DIRICHLET, rng)
    # Servers and ordering services have ids after the nodes' and never train.
    part = parts[node % nodes]
    return learner.client(part, seed=settings.seed, node=NodeId(node), flipped=False)
