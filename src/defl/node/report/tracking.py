"""Figures of each round for an experiment tracker: TensorBoard, MLflow or Weights & Biases.

The library runs in a process of its own (tracking_process.py). A thread feeds it from a bounded
queue: if the tracker is slow or fails, the node neither waits nor stops.
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
from defl.node.report.log import Log

FOLDER = "tracking"  # in the node's folder
LOG_FILE = "tracking.log"
# A few lines per round: a tracker that is hundreds of rounds behind is of no use.
LINES_MAX = 1024
# How long a node that exits waits for the tracker to take the queue.
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
    """The node's side of the tracker; `record` never waits."""

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
                start_new_session=True,  # it finishes its work after the node has stopped
            )
        self._thread = threading.Thread(target=self._feed, name="defl-tracking", daemon=True)
        self._thread.start()

    def record(self, round_: int, values: Mapping[str, float]) -> None:
        """Queues the finite figures of a round; drops them if the tracker is too far behind."""
        finite = {name: float(value) for name, value in values.items() if isfinite(value)}
        line = json.dumps({"round": round_, "values": finite}).encode() + b"\n"
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._lost += 1
            if self._lost == 1:
                self._log.warning("the tracker is too slow: figures are dropped")

    def close(self) -> None:
        """Hands over the queue; the tracker then finishes on its own. A tracker that does not read
        is killed."""
        try:
            self._lines.put(None, timeout=CLOSE_S)
        except queue.Full:
            self._process.kill()
            self._lines.put(None)  # there is room: the thread drains the queue of a dead tracker
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
                pass  # the queue must not fill up


def start_tracking(
    track: Track, folder: Path, federation: str, name: str, log: Log
) -> Tracking | None:
    """None if no tracker is configured, or if it cannot start: the node runs without one."""
    if track is Track.NONE:
        return None
    if not installed(track):
        log.warning("no experiment tracking", why=how_to_install(track))
        return None
    try:
        return Tracking(tracking_command(track, folder, federation, name), folder, log)
    except OSError as error:
        log.warning("no experiment tracking", why=error)
        return None
