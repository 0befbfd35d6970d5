"""Conditions: lines that break and heal."""

from defl.lab.chaos.condition import ChaosCondition
from defl.lab.chaos.link import LineQuality
from defl.lab.chaos.sites import FederationSetting
from defl.lab.chaos.trial import Trial

WAY = LineQuality(delay_ms=10)
CUT_S = 20.0
FLAP_S = 3.0
FLAPS = 5
# Enough that some are left after the cut, whatever the members on the larger side do meanwhile.
ENOUGH = FederationSetting(rounds=20)


def _up_and_running(trial: Trial) -> None:
    trial.net.link.every(up=WAY)
    trial.start()
    trial.wait_round(2)


def _heal(trial: Trial) -> None:
    trial.net.link.heal()
    trial.healed()


def _two_and_two(trial: Trial) -> None:
    _up_and_running(trial)
    trial.net.link.part([0, 1], [2, 3])
    trial.sleep(1.0)  # what was under way arrives
    before = [trial.height(member) for member in trial.members]
    trial.sleep(CUT_S)
    after = [trial.height(member) for member in trial.members]
    if after != before:
        trial.violations.append(f"half of the members committed: heights {before}, then {after}")
    _heal(trial)


def _three_and_one(trial: Trial) -> None:
    _up_and_running(trial)
    trial.net.link.part([0, 1, 2], [3])
    before = trial.rounds[0]
    trial.sleep(CUT_S)
    if trial.rounds[0] == before:
        trial.violations.append(f"three of four members closed no round in {CUT_S:.0f} s")
    _heal(trial)


def _one_way(trial: Trial) -> None:
    """Member 3 hears everybody and nobody hears it; and member 0 does not hear member 1."""
    _up_and_running(trial)
    for other in (0, 1, 2):
        trial.net.link.cut(3, other)
    trial.net.link.cut(1, 0)
    trial.sleep(CUT_S)
    _heal(trial)


def _flapping(trial: Trial) -> None:
    _up_and_running(trial)
    for _ in range(FLAPS):
        trial.net.link.part([3], [0, 1, 2])
        trial.sleep(FLAP_S)
        trial.net.link.heal()
        trial.sleep(FLAP_S)
    trial.healed()


def _flapping_everywhere(trial: Trial) -> None:
    _up_and_running(trial)
    everybody = list(trial.members)
    for _ in range(FLAPS):
        trial.net.link.part(everybody, everybody)
        trial.sleep(FLAP_S)
        trial.net.link.heal()
        trial.sleep(FLAP_S)
    trial.healed()


BROKEN_LINES = (
    ChaosCondition(
        "partition-2-2", "two members cut from the other two for 20 s", _two_and_two, ENOUGH
    ),
    ChaosCondition("partition-3-1", "one member cut off for 20 s", _three_and_one, ENOUGH),
    ChaosCondition(
        "one-way",
        "for 20 s nobody hears one member, and one does not hear another",
        _one_way,
        ENOUGH,
    ),
    ChaosCondition("flapping", "one member's line breaks every 3 s, for 30 s", _flapping, ENOUGH),
    ChaosCondition(
        "flapping-all", "all lines break every 3 s, for 30 s", _flapping_everywhere, ENOUGH
    ),
)
