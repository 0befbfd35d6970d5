"""Each round's figures reach an experiment tracker, whose failures never affect the node."""

import io
import json
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from defl.clients.extras import install_command
from defl.ids import NodeId, Round
from defl.node.report.history import RoundHistory
from defl.node.report.log import Log
from defl.node.report.tracking import (
    CLOSE_S,
    FOLDER,
    LINES_MAX,
    LOG_FILE,
    Track,
    Tracking,
    installed,
    start_tracking,
    tracking_command,
)
from defl.node.setup.config import NodeConfig, node_text
from defl.node.work.worker_process import WorkReport
from defl.output import Aggregate, RoundClosed
from support.logs import log_to

LIMIT_S = 180.0


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(stream: io.StringIO) -> Log:
    return log_to(stream, as_json=False)


def ended(tracking: Tracking) -> int:
    """The exit code of the tracker, which exits once the node closes its input."""
    tracking.close()
    return tracking._process.wait(LIMIT_S)


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


# --- Recording -----------------------------------------------------------------------------------


def test_a_round_records_training_evaluation_and_left_out_members() -> None:
    recorded: dict[str, float] = {}
    members = [NodeId(0), NodeId(1)]
    history = RoundHistory(["alice", "bob"], members, lambda _, values: recorded.update(values))
    history.trained(WorkReport(3, {"loss": 0.5}))
    history.evaluated(2, {"accuracy": 0.9}, 0.1)
    history.closed(RoundClosed(Round(3), (), (NodeId(1),)))
    history.aggregated(Aggregate(3, b"", (), b"", 1), WorkReport(3))

    assert recorded == {
        "train/loss": 0.5,
        "evaluate/accuracy": 0.9,
        "rounds/without_update": 1,
        "rounds/left_out_by_rule": 0,
        "left_out/alice": 1.0,
        "left_out/bob": 1.0,
    }


def test_a_tracker_gets_every_finite_figure(tmp_path: Path, log: Log) -> None:
    tracking = Tracking(script("import sys; print(sys.stdin.read())"), tmp_path, log)
    for number in range(3):
        tracking.record(number, {"loss": 0.5 / (number + 1), "bad": float("nan")})
    assert ended(tracking) == 0

    lines = (tmp_path / FOLDER / LOG_FILE).read_text(encoding="utf-8").split("\n")
    received = [json.loads(line) for line in lines if line]
    assert received == [{"round": n, "values": {"loss": 0.5 / (n + 1)}} for n in range(3)]


# --- Trackers that fail ---------------------------------------------------------------------------


def test_a_tracker_that_never_reads_does_not_delay_the_node_and_is_killed(
    tmp_path: Path, log: Log, stream: io.StringIO
) -> None:
    tracking = Tracking(script("import signal; signal.pause()"), tmp_path, log)
    long = {f"metric {n}": 1.0 for n in range(100)}
    started = time.monotonic()
    for number in range(LINES_MAX + 200):  # more than queue and pipe hold
        tracking.record(number, long)
    assert time.monotonic() - started < CLOSE_S
    tracking.close()

    assert tracking._process.wait(LIMIT_S) != 0
    assert stream.getvalue().count("too slow") == 1


def test_a_crashed_tracker_is_logged_once(tmp_path: Path, log: Log, stream: io.StringIO) -> None:
    tracking = Tracking(script("raise SystemExit(3)"), tmp_path, log)
    assert tracking._process.wait(LIMIT_S) == 3
    for number in range(3 * LINES_MAX):
        tracking.record(number, {"loss": 1.0})
        while tracking._lines.qsize() > LINES_MAX // 2:
            time.sleep(0)  # the thread drains the queue
    tracking.close()

    assert stream.getvalue().count("the tracker ended") == 1
    assert "tracking/tracking.log" in stream.getvalue()


def test_a_missing_tracker_is_logged_with_the_install_command(
    tmp_path: Path, log: Log, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("defl.node.report.tracking.find_spec", lambda _: None)

    assert start_tracking(Track.MLFLOW, tmp_path, "f", "alice", log) is None
    assert install_command("mlflow") in stream.getvalue()


def test_no_tracker_runs_by_default(tmp_path: Path, log: Log) -> None:
    config = NodeConfig(name="alice", address="127.0.0.1:1", listen="127.0.0.1:1")

    assert 'track = "none"' in node_text(config)
    assert start_tracking(config.track, tmp_path, "f", "alice", log) is None
    assert list(tmp_path.iterdir()) == []


# --- The libraries themselves, offline -----------------------------------------------------------


def tracked(track: Track, folder: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed(track):
        pytest.skip(f"{track.value} is not installed")
    monkeypatch.setenv("HOME", str(folder))
    tracking = Tracking(tracking_command(track, folder, "fed", "alice"), folder, log)
    for number in (1, 2):
        tracking.record(number, {"train/loss": 1 / number, "left_out/bob": 1.0})
    tracking.record(1, {"evaluate/accuracy": 0.75})
    code = ended(tracking)
    assert code == 0, (folder / FOLDER / LOG_FILE).read_text(encoding="utf-8")


def test_tensorboard_files_hold_the_figures(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked(Track.TENSORBOARD, tmp_path, log, monkeypatch)

    files = list((tmp_path / FOLDER / "fed" / "alice").glob("events.out.tfevents.*"))
    assert len(files) == 1
    assert all(tag in files[0].read_bytes() for tag in (b"train/loss", b"evaluate/accuracy"))


def test_mlflow_stores_the_run_with_its_metrics_by_round(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracked(Track.MLFLOW, tmp_path, log, monkeypatch)

    with sqlite3.connect(tmp_path / FOLDER / "mlflow.db") as database:
        rows = database.execute("SELECT key, step, value FROM metrics").fetchall()
        runs = database.execute("SELECT name, status FROM runs").fetchall()
    database.close()
    assert ("train/loss", 2, 0.5) in rows
    assert ("evaluate/accuracy", 1, 0.75) in rows
    assert runs == [("alice", "FINISHED")]


def test_weights_and_biases_keeps_an_offline_run(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    tracked(Track.WANDB, tmp_path, log, monkeypatch)

    runs = list((tmp_path / FOLDER / "wandb").glob("offline-run-*/*.wandb"))
    assert len(runs) == 1
    assert b"evaluate/accuracy" in runs[0].read_bytes()
