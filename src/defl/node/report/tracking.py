"""Figures of each round for an experiment tracker: TensorBoard, MLflow or Weights & Biases.

The library runs in a process of its own (tracking_process.py), which is fed by a thread from a
bounded queue: however slow it is, however it fails, the node neither waits nor stops.
"""

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib.util import find_spec
from math import isfinite
from pathlib import Path

from defl.clients.extras import install_command
from defl.node.report.telemetry import Log

FOLDER = "tracking"  # in the node's folder
LOG_FILE = "tracking.log"
# A few lines a round: hundreds of rounds fit, and a tracker that is that late is of no use.
LINES_MAX = 1024
# How long a node that ends waits until what was recorded has been handed over.
CLOSE_S = 5.0


class Track(StrEnum):
    NONE = "none"
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    WANDB = "wandb"


def installed(track: Track) -> bool:
    return track is Track.NONE or find_spec(track.value) is not None


def how_to_install(track: Track) -> str:
    return f"{track.value} is not installed: {install_command(track.value)}"


def tracking_command(track: Track, folder: Path, federation: str, name: str) -> list[str]:
    module = "defl.node.report.tracking_process"
    return [sys.executable, "-m", module, track.value, str(folder / FOLDER), federation, name]


class Tracking:
    """The node's side; `record` never waits."""

    def __init__(self, command: Sequence[str], folder: Path, log: Log) -> None:
        self._log = log
        self._lines: queue.Queue[bytes | None] = queue.Queue(LINES_MAX)
        self._lost = 0
        (folder / FOLDER).mkdir(exist_ok=True)
        with (folder / FOLDER / LOG_FILE).open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, or a test's
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                bufsize=0,
                start_new_session=True,  # it finishes what it has when the node is stopped
            )
        self._thread = threading.Thread(target=self._feed, name="defl-tracking", daemon=True)
        self._thread.start()

    def record(self, round_: int, values: Mapping[str, float]) -> None:
        """Finite figures of a round; they are dropped when the tracker is too far behind."""
        shown = {name: float(value) for name, value in values.items() if isfinite(value)}
        line = json.dumps({"round": round_, "values": shown}).encode() + b"\n"
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._lost += 1
            if self._lost == 1:
                self._log.warning("the tracker is too slow: figures are lost to it")

    def close(self) -> None:
        """What was recorded is handed over; the tracker finishes by itself. One that does not even
        listen is ended."""
        try:
            self._lines.put(None, timeout=CLOSE_S)
        except queue.Full:
            self._process.kill()
            self._lines.put(None)  # there is room: the thread drains what nobody wants any more
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._process.kill()
            self._thread.join()

    def _feed(self) -> None:
        pipe = self._process.stdin
        if pipe is None:
            raise RuntimeError("the tracker was started with a pipe")
        try:
            with pipe:
                while (line := self._lines.get()) is not None:
                    pipe.write(line)
        except OSError:
            self._log.warning("the tracker ended", see=f"{FOLDER}/{LOG_FILE}")
            while self._lines.get() is not None:
                pass  # nobody wants them; the queue must not fill


def start_tracking(
    track: Track, folder: Path, federation: str, name: str, log: Log
) -> Tracking | None:
    """None if nothing is to be tracked, or it cannot be: the node does without."""
    if track is Track.NONE:
        return None
    if not installed(track):
        log.warning("nothing is tracked", why=how_to_install(track))
        return None
    try:
        return Tracking(tracking_command(track, folder, federation, name), folder, log)
    except OSError as error:
        log.warning("nothing is tracked", why=error)
        return None
