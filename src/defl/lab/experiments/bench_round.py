"""Measures a round's time outside training, and commit latency, on real nodes.

Both are reported as ratios to a measurement in the same run: the bare TLS exchange of the same
bytes, and a round trip over loopback.
"""

import asyncio
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from defl.committee import Rules, Timing, faults_of
from defl.errors import UserError
from defl.lab.experiments.exchange import measure
from defl.lab.experiments.processes import Nodes
from defl.lab.experiments.processor_times import KINDS, ProcessorTimes
from defl.lab.experiments.round_phases import PHASES, Times, critical_paths, durations
from defl.lab.experiments.sampling import sampled
from defl.node.setup.config import LogLevel

LIMIT_S = 1200.0
# Rounds left out: processes start, inner loops are compiled, and until retention drops the first
# blobs every file is new.
WARM_UP = 5
EXCHANGES = 5  # before the nodes run, and as many after
PINGS = 200
SAMPLE_EVERY_S = 0.05  # of processor times
SAMPLE_PHASES_EVERY_S = 0.005
GRACE_S = 30.0
GST_LT_S = 60.0  # no node sends an AGG: rounds close because all members have updated
# For commits during transfers: each node trains this much longer than the one before, so that its
# blob travels while the one before commits its UPD, and AGGs are sent in between.
LATER_S = 1.0
GST_LT_EARLY_S = 2.0
IN_FLIGHT_ROUNDS = 6


def bench_round(
    count: int, megabytes: float, rounds: int, *, phases: bool = False
) -> dict[str, Any]:
    """With `phases`, also where the time goes; the nodes then log more."""
    values = int(megabytes * 1e6) // 4
    size = 4 * values
    with tempfile.TemporaryDirectory(prefix="defl-bench-") as scratch:
        folder = Path(scratch)
        bare = asyncio.run(measure(folder / "bare-before", count, size, EXCHANGES))
        timing = Timing(gst_lt_min_s=GST_LT_S, grace_s=GRACE_S)
        level = LogLevel.DEBUG if phases else LogLevel.INFO
        nodes = Nodes(
            folder / "nodes", count, rounds + WARM_UP, values=values, timing=timing, log_level=level
        )
        try:
            processors = _watched(nodes, SAMPLE_PHASES_EVERY_S if phases else SAMPLE_EVERY_S)
            wrong = nodes.judge()
            logs = [nodes.log(member) for member in nodes.members]
            timed = timed_rounds(logs)
            states = [state for m in nodes.members if (state := nodes.status(m)) is not None]
        finally:
            nodes.close()
        bare += asyncio.run(measure(folder / "bare-after", count, size, EXCHANGES))
    per_round = [round_.outside_s for round_ in timed]
    expected = (count - 1) * size * (rounds + WARM_UP)
    result = {
        "nodes": count,
        "mb": size / 1e6,
        "rounds": rounds,
        "seconds_per_round": median(per_round),
        "seconds_each": per_round,
        "longest_training_seconds": median(round_.longest_training_s for round_ in timed),
        "shortest_training_seconds": median(round_.shortest_training_s for round_ in timed),
        "processor_seconds": processor_seconds(logs, processors, WARM_UP),
        "bare_tls_seconds": median(bare),
        "ratio_to_bare_tls": median(per_round) / median(bare),
        "sent_ratio": max(state.sent_bytes for state in states) / expected,
        "received_ratio": max(state.received_bytes for state in states) / expected,
        "memory_peak_bytes": max(state.memory_peak_bytes for state in states),
        "memory_peak_ratio_to_tau_n_m": max(state.memory_peak_bytes for state in states)
        / (2 * count * size),
        "disk_bytes": max(state.disk_bytes for state in states),
        "disk_ratio_to_tau_n_m": max(state.disk_bytes for state in states) / (2 * count * size),
        "wrong": wrong,
    }
    if phases:
        paths = critical_paths(logs, count - faults_of(count), WARM_UP + 1)
        result["phases"] = phase_rows(paths, processors)
    return result


def _watched(nodes: Nodes, sample_every_s: float) -> ProcessorTimes:
    """Run all nodes to their end."""
    nodes.start()
    times = ProcessorTimes([nodes.pid(member) for member in nodes.members])
    with sampled(times.sample, sample_every_s):
        nodes.finish(LIMIT_S)
    return times


def processor_seconds(
    logs: Sequence[Sequence[Mapping[str, Any]]], processors: ProcessorTimes, first: int
) -> dict[str, float]:
    """Of each process of a node, the mean per round after the close of round `first`."""
    closed = [_by_round(log, "round closed", "time") for log in logs]
    last = max(closed[0])
    used = processors.used(
        max(times[first] for times in closed), max(times[last] for times in closed)
    )
    per_round = {kind: seconds / (last - first) for kind, seconds in used.items()}
    return {**per_round, "sum": sum(per_round.values())}


def phase_rows(paths: Sequence[Times], processors: ProcessorTimes) -> list[dict[str, Any]]:
    """For each phase the median seconds, and the processor seconds of a node's processes in it:
    those of all members, whatever each of them was doing, as a mean of the rounds."""
    rows = []
    for number, (phase, seconds) in enumerate(zip(PHASES, durations(paths), strict=True)):
        used = [processors.used(path[number], path[number + 1]) for path in paths]
        mean = {kind: fmean(each[kind] for each in used) for kind in KINDS}
        rows.append({"phase": phase, "seconds": seconds, "processor_seconds": mean})
    return rows


@dataclass(frozen=True, slots=True)
class TimedRound:
    whole_s: float  # from close to close, at the node that took longest
    longest_training_s: float
    shortest_training_s: float

    @property
    def outside_s(self) -> float:
        """A round waits for its longest training."""
        return self.whole_s - self.longest_training_s


def timed_rounds(logs: Sequence[Sequence[Mapping[str, Any]]]) -> list[TimedRound]:
    """The rounds after the warm-up, from all nodes' logs."""
    closed = [_by_round(log, "round closed", "time") for log in logs]
    trained = [_by_round(log, "trained", "seconds") for log in logs]
    return [
        TimedRound(
            max(times[number] - times[number - 1] for times in closed),
            max(seconds.get(number, 0.0) for seconds in trained),
            min(seconds.get(number, 0.0) for seconds in trained),
        )
        for number in sorted(closed[0])
        if number > WARM_UP
    ]


def _by_round(log: Sequence[Mapping[str, Any]], event: str, field: str) -> dict[int, float]:
    return {line["round"]: line[field] for line in log if line["event"] == event}


def bench_commit(count: int, rounds: int, in_flight_mb: float, rules: Rules) -> dict[str, Any]:
    """Commit latency of a federation with tiny weights; with `in_flight_mb`, also that of
    transactions committed while a blob of this size travels to all members."""
    with tempfile.TemporaryDirectory(prefix="defl-bench-") as scratch:
        started = time.monotonic()
        timing = Timing(gst_lt_min_s=GST_LT_S, grace_s=GRACE_S)
        logs, wrong, processors = _run(
            Nodes(Path(scratch) / "idle", count, rounds, timing=timing, rules=rules)
        )
        took = time.monotonic() - started
        idle = [commit.ms for commit in _commits(logs)]
        result: dict[str, Any] = {
            "nodes": count,
            "rules": rules.value,
            "rounds": rounds,
            "commit_ms": _percentiles(idle),
            "round_trip_ms": round_trip_s() * 1000,
            "transactions_per_s": len(idle) / took,
            "processor_seconds": processor_seconds(logs, processors, 1),
            "wrong": wrong,
        }
        result["ratio_to_round_trip"] = result["commit_ms"]["p50"] / result["round_trip_ms"]
        if in_flight_mb > 0:
            values = int(in_flight_mb * 1e6) // 4
            logs, wrong, _ = _run(
                Nodes(
                    Path(scratch) / "in-flight",
                    count,
                    IN_FLIGHT_ROUNDS,
                    values=values,
                    later_s=LATER_S,
                    timing=Timing(gst_lt_min_s=GST_LT_EARLY_S, grace_s=GRACE_S),
                    rules=rules,
                )
            )
            busy = [commit.ms for commit in _commits(logs) if _during_transfer(commit, logs)]
            result["in_flight"] = {
                "mb": 4 * values / 1e6,
                "commits": len(busy),
                "commit_ms": _percentiles(busy),
                "ratio_to_idle": _percentiles(busy)["p50"] / result["commit_ms"]["p50"],
            }
            result["wrong"] = [*result["wrong"], *wrong]
    return result


def _run(nodes: Nodes) -> tuple[list[list[dict[str, Any]]], list[str], ProcessorTimes]:
    """Each node's log, the faults found after the run, and the processor times."""
    try:
        processors = _watched(nodes, SAMPLE_EVERY_S)
        return [nodes.log(member) for member in nodes.members], nodes.judge(), processors
    finally:
        nodes.close()


@dataclass(frozen=True, slots=True)
class Commit:
    kind: str
    round: int
    at: float
    ms: float

    @property
    def submitted_at(self) -> float:
        return self.at - self.ms / 1000


def _commits(logs: Sequence[Sequence[Mapping[str, Any]]]) -> list[Commit]:
    return [
        Commit(line["kind"], line["round"], line["time"], line["ms"])
        for log in logs
        for line in log
        if line["event"] == "committed"
    ]


def _during_transfer(commit: Commit, logs: Sequence[Sequence[Mapping[str, Any]]]) -> bool:
    """Whether a blob was in flight for at least half of the commit's time.

    A blob is in flight from the end of its training until its author submits the UPD.
    """
    overlap_s = 0.0
    for log in logs:
        trained = {line["round"]: line["time"] for line in log if line["event"] == "trained"}
        for upd in _commits([log]):
            if upd.kind == "UPD":
                until = min(commit.at, upd.submitted_at)
                overlap_s += max(0.0, until - max(commit.submitted_at, trained[upd.round]))
    return overlap_s >= commit.ms / 1000 / 2


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        raise UserError("no transaction was committed while blobs travelled: try a larger model")
    ordered = sorted(values)
    return {"p50": median(ordered), "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]}


def round_trip_s() -> float:
    """The median round trip of one byte over loopback."""
    server = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(1):
                connection.sendall(data)

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    times = []
    with socket.create_connection(server.getsockname()) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            started = time.perf_counter()
            client.sendall(b"x")
            client.recv(1)
            times.append(time.perf_counter() - started)
    thread.join()
    server.close()
    return median(times)
