"""Conditions: lines that are slow, far, lossy or lopsided all the time."""

from defl.lab.chaos.condition import ChaosCondition
from defl.lab.chaos.link import CLEAR, LineQuality
from defl.lab.chaos.sites import FederationSetting
from defl.lab.chaos.trial import Trial

FEW = FederationSetting(rounds=6)


def _steady(name: str, title: str, up: LineQuality, down: LineQuality = CLEAR) -> ChaosCondition:
    def script(trial: Trial) -> None:
        trial.net.link.every(up=up, down=down)
        trial.start()

    return ChaosCondition(name, title, script, FEW)


# A delay is that of the whole way from one member to another: half a round trip.
SLOW_LINES = (
    _steady("clear", "nothing is done to the network", CLEAR),
    _steady("delay", "50 ± 20 ms each way", LineQuality(delay_ms=50, jitter_ms=20)),
    _steady(
        "reorder",
        "50 ± 20 ms each way, packets overtake each other",
        LineQuality(delay_ms=50, jitter_ms=20, reorder=True),
    ),
    _steady("far", "200 ms each way", LineQuality(delay_ms=200)),
    _steady(
        "loss", "2 % of all packets are lost, 10 ms each way", LineQuality(delay_ms=10, loss=0.02)
    ),
    _steady(
        "100-mbit",
        "100 Mbit/s, 10 ms each way",
        LineQuality(delay_ms=10, mbit_s=100),
        LineQuality(mbit_s=100),
    ),
    _steady(
        "10-mbit",
        "10 Mbit/s, 10 ms each way",
        LineQuality(delay_ms=10, mbit_s=10),
        LineQuality(mbit_s=10),
    ),
    _steady(
        "lopsided",
        "10 Mbit/s down and 2 up, 10 ms each way",
        LineQuality(delay_ms=10, mbit_s=2),
        LineQuality(mbit_s=10),
    ),
)
