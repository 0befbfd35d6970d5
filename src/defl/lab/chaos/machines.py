"""Conditions: machines that stop, whose disk fills up, whose clock jumps."""

import os
import shutil
import signal
from pathlib import Path

from defl.lab.chaos.condition import ChaosCondition
from defl.lab.chaos.hosts import run
from defl.lab.chaos.link import LineQuality
from defl.lab.chaos.requirements import FAKETIME, faketime_library
from defl.lab.chaos.sites import FederationSetting
from defl.lab.chaos.trial import Trial

WAY = LineQuality(delay_ms=10)
ENOUGH = FederationSetting(rounds=20)
STOPPED_S = 20.0
FULL_S = 15.0
HOUR_S = 3600
JUMP_S = 8.0
# Room for the reserve that a node keeps, and for this federation's blobs.
DISK_MB = 256
LAST = 3  # the member that it happens to


def _stopped(trial: Trial) -> None:
    """Its processes do not run, and its connections stay open."""
    trial.net.link.every(up=WAY)
    trial.start()
    trial.wait_round(2)
    pid = trial.sites.pid(LAST)
    os.killpg(pid, signal.SIGSTOP)
    trial.sleep(STOPPED_S)
    os.killpg(pid, signal.SIGCONT)
    trial.healed()


def _disk_full(trial: Trial) -> None:
    """A small disk under the state of one node; something else fills it, then goes away."""
    trial.net.link.every(up=WAY)
    state = trial.local.nodes[LAST] / "state"
    state.mkdir(mode=0o700)
    run("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=0700", "defl-chaos", str(state))
    trial.start()
    trial.wait_round(2)
    filler = state / "filler"
    _fill(filler)
    trial.wait("the node reports a full disk", lambda: _disk_is_full(trial))
    trial.sleep(FULL_S)
    filler.unlink()
    trial.healed()


def _fill(file: Path) -> None:
    with file.open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, shutil.disk_usage(file.parent).free)


def _disk_is_full(trial: Trial) -> bool:
    status = trial.newest(LAST)
    return status is not None and status.disk_full


def _clock(trial: Trial) -> None:
    """An hour forward, an hour back, while it runs; the monotonic clock goes on as it does when a
    machine's clock is set."""
    trial.net.link.every(up=WAY)
    offset = trial.net.folder / "clock"
    _set_clock(offset, 0)
    trial.sites.variables[LAST] = {
        "LD_PRELOAD": str(faketime_library()),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    trial.start()
    trial.wait_round(2)
    for seconds in (HOUR_S, 0, -HOUR_S):
        _set_clock(offset, seconds)
        trial.sleep(JUMP_S)
    _set_clock(offset, 0)
    trial.healed()


def _set_clock(offset: Path, seconds: int) -> None:
    new = offset.with_suffix(".new")
    new.write_text(f"{seconds:+d}\n", encoding="ascii")
    new.replace(offset)


MACHINES = (
    ChaosCondition("stopped", "one member's processes stand still for 20 s", _stopped, ENOUGH),
    ChaosCondition("disk-full", "one member's disk is full for 15 s", _disk_full, ENOUGH),
    ChaosCondition(
        "clock",
        "one member's clock jumps an hour forward, back, and an hour back",
        _clock,
        ENOUGH,
        tools=(FAKETIME,),
    ),
)
