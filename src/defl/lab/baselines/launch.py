"""A baseline on this machine: one folder and one process per seat, real TLS on loopback."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from defl.committee import DEFAULTS
from defl.errors import UserError
from defl.lab.baselines import systems
from defl.lab.baselines.process import PLAN_FILE, STATUS_FILE, SeatPlan
from defl.node.setup.config import NodeConfig, create_node
from defl.node.setup.identity import make_card, make_identity
from defl.node.setup.local import environment_of, free_ports, make_local
from defl.schema import Weights

LAST_SEAT = "server"  # or the ordering service
POLL_S = 0.1
STOP_S = 10.0


class Seats:
    """The processes of one baseline: create, start, kill, wait for and measure them."""

    def __init__(
        self,
        folder: Path,
        project: Path,
        client: str,
        count: int,
        rounds: int,
        profile: systems.Profile,
        *,
        aggregation: str = "fed_avg",
        seed: int = 1,
        absent: tuple[int, ...] = (),
        chunk_bytes: int = DEFAULTS.chunk_bytes,
        others: Mapping[int, str] | None = None,
        weights: Weights | None = None,
    ) -> None:
        """`others` maps nodes to clients of their own; `absent` seats are never started."""
        local = make_local(
            folder,
            project,
            client,
            count,
            rounds,
            timing=DEFAULTS.timing,
            aggregation=aggregation,
            chunk_bytes=chunk_bytes,
            others=others,
            weights=weights,
        )
        names = tuple(node.name for node in local.nodes)
        if systems.seats_of(profile, count) > count:
            _make_last(folder)
            names = (*names, LAST_SEAT)
        plan = SeatPlan(profile, names, seed, absent)
        (folder / PLAN_FILE).write_bytes(msgspec.json.encode(plan))
        self.folder = folder
        self._count = count
        self._plan = plan
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, environments: Mapping[int, Mapping[str, str]] | None = None) -> None:
        """`environments` extend the variables that identify each process's node."""
        for seat, name in enumerate(self._plan.seats):
            if seat in self._plan.absent:
                continue
            variables = {**environment_of(seat, self._count), **(environments or {}).get(seat, {})}
            numbers = (str(seat), str(os.getpid()))
            with (self.folder / name / "seat.log").open("ab") as log:
                self._processes[seat] = subprocess.Popen(  # noqa: S603 - our own module
                    [
                        sys.executable,
                        "-m",
                        "defl.lab.baselines.process",
                        str(self.folder),
                        *numbers,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=variables,
                )

    def kill(self, seat: int) -> None:
        process = self._processes.pop(seat)
        process.kill()
        process.wait()

    def status(self, seat: int) -> dict[str, Any]:
        """The newest status; empty before the first."""
        path = self.folder / self._plan.seats[seat] / STATUS_FILE
        status: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
        return status

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the seats' folders."""
        return self._plan.seats

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def require_no_failure(self) -> None:
        """Raise with the end of its log if a seat ended: seats serve until they are closed."""
        for seat, process in self._processes.items():
            if process.poll() is not None:
                raise UserError(self._failure(seat))

    def finish(self, limit_s: float) -> list[dict[str, Any]]:
        """Wait until every living seat has the last model and all sent bytes have arrived."""
        until = time.monotonic() + limit_s
        while not self.settled:
            self.require_no_failure()
            if time.monotonic() > until:
                raise UserError(f"the seats did not finish within {limit_s} s")
            time.sleep(POLL_S)
        self.close()
        return [self.status(seat) for seat in range(len(self._plan.seats))]

    @property
    def settled(self) -> bool:
        states = [self.status(seat) for seat in self._processes]
        if not all(state.get("finished") for state in states):
            return False
        whole = len(states) == len(self._plan.seats)
        lanes = [lane for state in states for lane in state["traffic"].values()]
        sent, received = sum(x["sent"] for x in lanes), sum(x["received"] for x in lanes)
        return sent == received or not whole  # bytes sent to dead seats never arrive

    def _failure(self, seat: int) -> str:
        log = self.folder / self._plan.seats[seat] / "seat.log"
        return f"seat {seat} ended with an error:\n{log.read_text(errors='replace')[-2000:]}"

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _make_last(folder: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    identity = make_identity(LAST_SEAT)
    config = NodeConfig(name=LAST_SEAT, address=address, listen=address, client="")
    create_node(folder / LAST_SEAT, config, identity, make_card(identity, address))
