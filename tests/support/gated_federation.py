"""Real nodes of a tiny project, one of them a liar, whose rounds go on when the test says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from defl.committee import Timing
from defl.lab.experiments.poisoned import HONEST_CLIENT_VARIABLE, client_spec
from defl.node.setup.local import make_local
from defl.node.setup.processes import Processes

TIMING = Timing(view_base_s=0.5, gst_lt_min_s=1.0, gst_lt_max_s=3.0, grace_s=60.0)
CLIENT = "client:client"
# Training of a round begins when its gate is open: the file exists.
CLIENT_TEXT = """
import os, time
from pathlib import Path
import numpy as np

GATES = Path({gates!r})
TARGET = np.linspace(-1, 1, 50, dtype=np.float32)

class client:
    def __init__(self):
        self._rng = np.random.default_rng(int(os.environ.get("DEFL_NODE", "0")))

    def initial_weights(self):
        return {{"w": np.zeros(50, dtype=np.float32)}}

    def train(self, weights, round_):
        while not (GATES / str(int(round_))).exists():
            time.sleep(0.02)
        noise = 0.01 * self._rng.standard_normal(50, dtype=np.float32)
        return {{"w": weights["w"] + (TARGET - weights["w"]) / 4 + noise}}, {{}}

    def evaluate(self, weights):
        return {{"accuracy": float(1 - np.abs(weights["w"] - TARGET).mean())}}
"""


class GatedNodes(Processes):
    def __init__(self, folder: Path, count: int, rounds: int, attack: str) -> None:
        """The last member attacks."""
        project, self._gates = folder / "project", folder / "gates"
        project.mkdir()
        self._gates.mkdir()
        text = CLIENT_TEXT.format(gates=str(self._gates))
        (project / "client.py").write_text(text, encoding="utf-8")
        environment = {HONEST_CLIENT_VARIABLE: CLIENT}
        local = make_local(
            folder / "run",
            project,
            CLIENT,
            count,
            rounds,
            timing=TIMING,
            others={count - 1: client_spec(attack)},
            environment=environment,
        )
        super().__init__(local, environment)

    def let_close(self, last: int) -> None:
        """Rounds up to this one may be trained for."""
        for number in range(1, last + 1):
            (self._gates / str(number)).touch()


@contextmanager
def gated_nodes(folder: Path, count: int, rounds: int, attack: str) -> Iterator[GatedNodes]:
    nodes = GatedNodes(folder, count, rounds, attack)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.stop()
