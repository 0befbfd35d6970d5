"""The process that runs an experiment tracker's library: reads lines of JSON, calls the library.

    python -m defl.node.report.tracking_process tensorboard|mlflow|wandb FOLDER FEDERATION NAME

Each start of a node is one run. Everything stays in FOLDER unless the library's own environment
variables (MLFLOW_TRACKING_URI, WANDB_MODE) say otherwise.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

PROJECT = "defl"
# A call that takes longer is taken to hang, and ends the process.
CALL_S = 600


class Tracker(Protocol):
    def record(self, round_: int, values: Mapping[str, float]) -> None: ...

    def finish(self) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path, federation: str, name: str) -> None:
        from tensorboard.summary import Writer  # noqa: PLC0415 - an extra

        self._writer: Any = Writer(str(folder / federation / name))

    def record(self, round_: int, values: Mapping[str, float]) -> None:
        for metric, value in values.items():
            self._writer.add_scalar(metric, value, step=round_)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


class MLflow:
    def __init__(self, folder: Path, federation: str, name: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow  # noqa: PLC0415 - an extra

        self._mlflow: ModuleType = mlflow
        if "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri(f"sqlite:///{folder.resolve() / 'mlflow.db'}")
            if mlflow.get_experiment_by_name(PROJECT) is None:
                place = (folder.resolve() / "artifacts").as_uri()
                mlflow.create_experiment(PROJECT, artifact_location=place)
        mlflow.set_experiment(PROJECT)
        mlflow.start_run(run_name=name, tags={"federation": federation})

    def record(self, round_: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=round_)

    def finish(self) -> None:
        self._mlflow.end_run()


class WeightsAndBiases:
    def __init__(self, folder: Path, federation: str, name: str) -> None:
        os.environ.setdefault("WANDB_MODE", "offline")
        import wandb  # noqa: PLC0415 - an extra

        self._run: Any = wandb.init(
            project=PROJECT,
            group=federation,
            name=name,
            dir=str(folder),
        )
        # A model is evaluated while the next round trains, so rounds arrive out of order.
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def record(self, round_: int, values: Mapping[str, float]) -> None:
        self._run.log({"round": round_, **values})

    def finish(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Path, str, str], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def main() -> None:
    kind, folder, federation, name = sys.argv[1:]
    signal.alarm(CALL_S)
    tracker = TRACKERS[kind](Path(folder), federation, name)
    signal.alarm(0)
    for line in sys.stdin:
        record = json.loads(line)
        signal.alarm(CALL_S)
        tracker.record(record["round"], record["values"])
        signal.alarm(0)
    signal.alarm(CALL_S)
    tracker.finish()


if __name__ == "__main__":
    main()
