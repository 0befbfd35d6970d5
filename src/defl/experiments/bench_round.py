"""How long a round takes outside training, and how long a commit takes, on real nodes.

Both are told as ratios to something measured in the same run: the bare TLS exchange of the same
bytes, and a round trip over loopback.
"""

import asyncio
import socket
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from defl.committee import Rules, Timing
from defl.experiments.exchange import measure
from defl.experiments.processes import Nodes

LIMIT_S = 1200.0
WARM_UP = 2  # rounds that are left out: processes start, inner loops are compiled, files made
PINGS = 200


def bench_round(count: int, megabytes: float, rounds: int) -> dict[str, Any]:
    values = int(megabytes * 1e6) // 4
    size = 4 * values
    with tempfile.TemporaryDirectory(prefix="defl-bench-") as made:
        folder = Path(made)
        bare = asyncio.run(measure(folder / "bare", count, size, 3))
        timing = Timing(gst_lt_min_s=60.0, grace_s=30.0)
        nodes = Nodes(folder / "nodes", count, rounds + WARM_UP, values=values, timing=timing)
        try:
            nodes.start()
            nodes.finish(LIMIT_S)
            wrong = nodes.judge()
            outside = [_outside_training(nodes.log(member)) for member in nodes.members]
            states = [nodes.status(member) for member in nodes.members]
        finally:
            nodes.close()
    per_round = [max(times) for times in zip(*outside, strict=True)]
    expected = (count - 1) * size * (rounds + WARM_UP)
    return {
        "nodes": count,
        "mb": size / 1e6,
        "rounds": rounds,
        "seconds_per_round": median(per_round),
        "seconds_each": per_round,
        "bare_tls_seconds": median(bare),
        "ratio_to_bare_tls": median(per_round) / median(bare),
        "sent_ratio": max(_bytes(state, "sent") for state in states) / expected,
        "received_ratio": max(_bytes(state, "received") for state in states) / expected,
        "memory_peak_bytes": max(state["memory_peak_bytes"] for state in states),
        "memory_peak_ratio_to_tau_n_m": max(state["memory_peak_bytes"] for state in states)
        / (2 * count * size),
        "disk_bytes": max(state["disk_bytes"] for state in states),
        "disk_ratio_to_tau_n_m": max(state["disk_bytes"] for state in states) / (2 * count * size),
        "wrong": wrong,
    }


def _outside_training(log: list[dict[str, Any]]) -> list[float]:
    """From one close to the next, less the time that the client itself trained."""
    closed = {line["round"]: line["time"] for line in log if line["event"] == "round closed"}
    trained = {line["round"]: line["seconds"] for line in log if line["event"] == "trained"}
    return [
        closed[round_] - closed[round_ - 1] - trained.get(round_, 0.0)
        for round_ in sorted(closed)
        if round_ > WARM_UP
    ]


def _bytes(state: dict[str, Any], way: str) -> int:
    return sum(int(lane[way]) for lane in state["traffic"].values())


def bench_commit(count: int, rounds: int, megabytes: float, rules: Rules) -> dict[str, Any]:
    values = max(1, int(megabytes * 1e6) // 4)
    with tempfile.TemporaryDirectory(prefix="defl-bench-") as made:
        timing = Timing(gst_lt_min_s=60.0, grace_s=30.0)
        nodes = Nodes(Path(made) / "n", count, rounds, values=values, timing=timing, rules=rules)
        started = time.monotonic()
        try:
            nodes.start()
            round_trip = round_trip_s()
            nodes.finish(LIMIT_S)
            wrong = nodes.judge()
            states = [nodes.status(member) for member in nodes.members]
        finally:
            nodes.close()
        took = time.monotonic() - started
    p50 = median(state["commit_ms"]["p50"] for state in states)
    p99 = max(state["commit_ms"]["p99"] for state in states)
    return {
        "nodes": count,
        "rules": rules.value,
        "rounds": rounds,
        "mb": 4 * values / 1e6,
        "commit_ms": {"p50": p50, "p99": p99},
        "round_trip_ms": round_trip * 1000,
        "ratio_to_round_trip": p50 / (round_trip * 1000),
        "transactions_per_s": count * rounds / took,
        "wrong": wrong,
    }


def round_trip_s() -> float:
    """The median of a byte's way over loopback and back."""
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
