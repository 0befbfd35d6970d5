"""Federations of real processes for tests and benchmarks: start, kill, restart, check, measure."""

import time
from collections.abc import Callable
from pathlib import Path

from defl.committee import DEFAULTS, Rules, Timing
from defl.crypto import Ed25519Signer
from defl.ids import NodeId
from defl.node.report.status_client import last_status
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import LogFormat, LogLevel
from defl.node.setup.local import Local, make_local
from defl.node.setup.processes import Processes
from defl.node.store.storage import Storage
from defl.output import ClosedRound
from defl.participant import Participant
from defl.participant_parts import present_epoch

POLL_S = 0.1
TIMING = Timing(view_base_s=0.5, gst_lt_min_s=2.0, gst_lt_max_s=30.0, grace_s=30.0)
# A client whose training takes about `seconds`, `later_s` longer on each next node, and moves each
# node's weights at random.
CLIENT = """
import os, time
import numpy as np

class client:
    def __init__(self):
        self._rng = np.random.default_rng(int(os.environ.get("DEFL_NODE", "0")))

    def initial_weights(self):
        return {{"w": np.zeros({values}, dtype=np.float32)}}

    def train(self, weights, round_):
        started = time.perf_counter()
        time.sleep({seconds} + {later_s} * int(os.environ.get("DEFL_NODE", "0")))
        values = weights["w"]
        values += self._rng.standard_normal(values.size, dtype=np.float32)
        return {{"w": values}}, {{"seconds": time.perf_counter() - started, "ended": time.time()}}

    def evaluate(self, weights):
        return {{"loss": 0.0}}
"""


class Nodes(Processes):
    """Nodes whose clients move at random, with checks of what they left behind."""

    def __init__(
        self,
        folder: Path,
        count: int,
        rounds: int,
        *,
        values: int = 1000,
        train_s: float = 0.0,
        later_s: float = 0.0,
        timing: Timing = TIMING,
        chunk_bytes: int = DEFAULTS.chunk_bytes,
        rules: Rules = DEFAULTS.rules,
        aggregation: str = "fed_avg",
        log_level: LogLevel = LogLevel.INFO,
    ) -> None:
        project = folder / "project"
        project.mkdir(parents=True)
        text = CLIENT.format(values=values, seconds=train_s, later_s=later_s)
        (project / "client.py").write_text(text, encoding="utf-8")
        self.rounds = rounds
        super().__init__(
            make_local(
                folder,
                project,
                "client:client",
                count,
                rounds,
                timing=timing,
                aggregation=aggregation,
                rules=rules,
                chunk_bytes=chunk_bytes,
                log_format=LogFormat.JSON,
                log_level=log_level,
            )
        )

    def wait(self, condition: Callable[[], bool], limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > until:
                rounds = [self.round(member) for member in self.members]
                raise AssertionError(f"still waiting after {limit_s} s; rounds: {rounds}")
            time.sleep(POLL_S)

    def finish(self, limit_s: float) -> None:
        """Wait until every node has ended by itself; raise at once if one failed."""

        def all_ended() -> bool:
            self.require_no_failure()
            return not self.any_running

        self.wait(all_ended, limit_s)

    def judge(self) -> list[str]:
        return violations_of(self.local, self.rounds)


def violations_of(local: Local, expected_rounds: int) -> list[str]:
    """What is wrong after the end of all nodes; nothing if all is well."""
    violations = []
    states = [last_status(node) for node in local.nodes]
    rounds = [state and state.round for state in states]
    models = [state and state.model for state in states]
    if rounds != [expected_rounds] * len(states):
        violations.append(f"rounds closed: {rounds}")
    if len(set(models)) != 1:
        violations.append(f"models differ: {models}")
    for member, state in enumerate(states):
        if state is not None and state.evidence:
            violations.append(f"node {member} has evidence of a double signature: {state.evidence}")
        if state is not None and state.observing:
            violations.append(f"node {member} is an observer: {state.observing}")
    return violations + _lost_blobs(local)


def _lost_blobs(local: Local) -> list[str]:
    """Committed updates of the last tau rounds that no node holds whole."""
    federation = read_federation(local.folder / "federation.toml").federation
    held = set()
    closed: tuple[ClosedRound, ...] = ()
    for member, node in enumerate(local.nodes):
        with Storage.open(node / "state") as storage:
            durable = storage.recovered()
        held |= {m.digest for m, chunks in durable.held if len(chunks) == len(m.chunks)}
        stranger = Ed25519Signer(bytes(32))
        present = present_epoch(federation, durable)
        reader = Participant(present, NodeId(member), stranger, durable)
        closed = max(closed, reader.state.closed, key=len)
    return [
        f"round {past.round}: the update of {ref.author} is lost"
        for past in closed
        for ref in past.updates
        if ref.digest not in held
    ]
