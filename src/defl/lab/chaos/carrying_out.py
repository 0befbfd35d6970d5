"""Carries out one condition or measurement: bounded in time, and cleaned up.

The logs of what failed are kept.
"""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from defl.errors import UserError
from defl.lab.chaos.calibrate import Calibration, calibrate
from defl.lab.chaos.condition import ChaosCondition
from defl.lab.chaos.figures import Figure, Measurement, measure
from defl.lab.chaos.network import network
from defl.lab.chaos.outcome import TrialOutcome
from defl.lab.chaos.trial import Trial
from defl.node.setup.processes import LOG_FILE

# Beyond a run's own limit: founding, starting and ending its nodes.
AROUND_S = 90
CALIBRATION_S = 180
CALIBRATED_HOSTS = 4


class TookTooLong(UserError):
    """The watchdog has ended a run."""


@contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    """Whatever hangs, the run ends and is cleaned up."""

    def bark(_: int, __: FrameType | None) -> None:
        raise TookTooLong(f"the run did not end within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def carry_out(condition: ChaosCondition, held: TextIO, logs: Path) -> TrialOutcome:
    members = condition.setting.members
    with network(members + condition.hosts, held) as net, watchdog(condition.limit_s + AROUND_S):
        trial = Trial(net, condition.setting, condition.limit_s)
        try:
            try:
                condition.script(trial)
                trial.finish()
            except UserError as failed:  # it stalled, took too long, or a node has ended
                trial.violations.append(str(failed))
            outcome = trial.outcome(condition.name, condition.title)
            if not outcome.passed:
                keep_logs(trial, logs / condition.name)
            return outcome
        finally:
            trial.close()


def keep_logs(trial: Trial, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for node in trial.local.nodes:
        shutil.copy(node / LOG_FILE, folder / f"{node.name}.log")


def measured(measurement: Measurement, held: TextIO) -> Figure:
    hosts = measurement.setting.members + measurement.hosts
    tcp = measurement.congestion_control
    with network(hosts, held, tcp) as net, watchdog(measurement.limit_s + AROUND_S):
        return measure(net, measurement)


def calibrated(held: TextIO) -> list[Calibration]:
    with network(CALIBRATED_HOSTS, held) as net, watchdog(CALIBRATION_S):
        return calibrate(net)
