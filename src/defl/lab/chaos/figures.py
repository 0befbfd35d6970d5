"""Figures: what a round and its bytes cost on a given network, beside what the line allows.

The yardstick is the time that a member's n - 1 incoming updates need at the speed of its line:
(n - 1) M / rate, with M the bytes of one update.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from defl.committee import DEFAULTS, Timing
from defl.errors import UserError
from defl.lab.chaos.bare_exchange import bare_exchange
from defl.lab.chaos.link import LineQuality, LinkStats
from defl.lab.chaos.network import CONGESTION_CONTROL, ChaosNetwork
from defl.lab.chaos.outcome import Log
from defl.lab.chaos.sites import DIALS, FederationSetting, relay_hosts, start_relay
from defl.lab.chaos.trial import Trial
from defl.node.report.status import NodeStatus
from defl.pool.weights import payload_bytes
from defl.schema import Codec, DType, Entry, Schema

MODEL_VALUES = 7_000_000  # 28 MB
# Rounds left out: processes start, TCP finds its rate, members' paces are learned.
WARM_UP = 2
ROUNDS = 5
# A round closes because all members have sent an update, not because one is given up.
GST_LT_S = 60.0

# A finished node goes on serving the others; the laboratory ends it.
TIMING = Timing(gst_lt_min_s=GST_LT_S, grace_s=120.0)


@dataclass(frozen=True, slots=True)
class Figure:
    """One run, with ratios to what the lines allow."""

    name: str
    title: str
    members: int
    update_mb: float
    round_s: float  # outside training, the median of the rounds after the warm-up
    ideal_s: float
    rounds_s: tuple[float, ...]
    frames_ratio: float  # bytes of frames received, per member and round, to (n - 1) M
    wire_ratio: float  # likewise, IP packets sent and received, the mean of both
    wire_ratio_max: float  # of the member and direction with the most
    late_ms: float
    violations: tuple[str, ...]
    tcp_s: float | None = None  # the same bytes over plain TCP, without nodes; None: not measured

    @property
    def ratio(self) -> float:
        return self.round_s / self.ideal_s


def outside_training(logs: Sequence[Log], warm_up: int) -> list[float]:
    """Of each later round: from close to close at the member that took longest, without the
    longest training."""
    closed = [_by_round(log, "round closed", "time") for log in logs]
    trained = [_by_round(log, "trained", "seconds") for log in logs]
    common = set.intersection(*(set(times) for times in closed))
    return [
        max(times[number] - times[number - 1] for times in closed)
        - max(seconds.get(number, 0.0) for seconds in trained)
        for number in sorted(common)
        if number > warm_up and number - 1 in common
    ]


def _by_round(log: Log, event: str, field: str) -> dict[int, float]:
    return {line["round"]: line[field] for line in log if line["event"] == event}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A federation on a network, to be measured; `lines` are the exceptions, by member."""

    name: str
    title: str
    up: LineQuality
    down: LineQuality
    setting: FederationSetting
    lines: dict[int, tuple[LineQuality, LineQuality]] = field(default_factory=dict)  # up, down
    hosts: int = 0  # besides the members'
    limit_s: float = 200.0
    bare: bool = True  # also measure plain TCP
    congestion_control: str = CONGESTION_CONTROL

    @property
    def update_bytes(self) -> int:
        entry = Entry("w", (self.setting.values,), DType.FLOAT32)
        return payload_bytes(Schema((entry,)), self.setting.codec)

    @property
    def ideal_s(self) -> float:
        """A member receives n - 1 updates, and sends its own at least once."""
        bits = 8 * self.update_bytes
        needed = []
        for member in range(self.setting.members):
            up, down = self.lines.get(member, (self.up, self.down))
            needed.append((self.setting.members - 1) * bits / (down.mbit_s * 1e6))
            needed.append(bits / (up.mbit_s * 1e6))
        return max(needed)


def measure(net: ChaosNetwork, wanted: Measurement) -> Figure:
    net.link.every(up=wanted.up, down=wanted.down)
    for member, (up, down) in wanted.lines.items():
        net.link.up(member, up)
        net.link.down(member, down)
    members = net.hosts[: wanted.setting.members]
    tcp_s = bare_exchange(members, wanted.update_bytes) if wanted.bare else None
    before = net.link.stats()
    trial = Trial(net, wanted.setting, wanted.limit_s)
    violations = []
    for host in relay_hosts(net.hosts, wanted.setting):
        start_relay(trial.local.folder, host)
    try:
        trial.start()
        try:
            trial.finish()
        except UserError as failed:  # it stalled, or a node has ended
            violations.append(str(failed))
        stats = net.link.stats().since(before)
        outcome = trial.outcome(wanted.name, wanted.title)
        logs = [trial.sites.log(member) for member in trial.members]
        statuses = [trial.sites.status(member) for member in trial.members]
    finally:
        trial.close()
    rounds_s = outside_training(logs, WARM_UP)
    return Figure(
        name=wanted.name,
        title=wanted.title,
        members=wanted.setting.members,
        update_mb=wanted.update_bytes / 1e6,
        round_s=median(rounds_s) if rounds_s else float("nan"),
        ideal_s=wanted.ideal_s,
        tcp_s=tcp_s,
        rounds_s=tuple(rounds_s),
        **traffic_ratios(stats, statuses, wanted),
        late_ms=stats.late_ms,
        violations=(*violations, *outcome.violations),
    )


def traffic_ratios(
    stats: LinkStats, statuses: Sequence[NodeStatus | None], wanted: Measurement
) -> dict[str, float]:
    members, rounds = wanted.setting.members, wanted.setting.rounds
    least = (members - 1) * wanted.update_bytes * rounds
    carried = [line.bytes for line in (*stats.up[:members], *stats.down[:members])]
    received = [status.received_bytes for status in statuses if status is not None]
    return {
        "frames_ratio": fmean(received) / least if received else float("nan"),
        "wire_ratio": fmean(carried) / least,
        "wire_ratio_max": max(carried) / least,
    }


FAST = LineQuality(mbit_s=100)
MODEL = FederationSetting(rounds=ROUNDS, values=MODEL_VALUES, timing=TIMING)
INT8 = replace(MODEL, codec=Codec.INT8)
TWO_DIAL = {2: DIALS, 3: DIALS}
SLOW_MEMBER = 6
# A seventh of the model, with the same number of chunks: at 10 Mbit/s the whole one takes minutes.
SMALLER = FederationSetting(
    members=7,
    rounds=4,
    values=MODEL_VALUES // 7,
    chunk_bytes=DEFAULTS.chunk_bytes // 7,
    timing=TIMING,
    sites={SLOW_MEMBER: DIALS},
)


def _far(delay_ms: float) -> LineQuality:
    return replace(FAST, delay_ms=delay_ms)


MEASUREMENTS = (
    Measurement("fp32-50", "fp32, 100 Mbit/s, 50 ms each way", _far(50), FAST, MODEL),
    Measurement("int8-50", "int8, 100 Mbit/s, 50 ms each way", _far(50), FAST, INT8),
    Measurement(
        "fp32-50-bbr", "fp32-50, but TCP uses bbr", _far(50), FAST, MODEL, congestion_control="bbr"
    ),
    Measurement(
        "int8-50-bbr", "int8-50, but TCP uses bbr", _far(50), FAST, INT8, congestion_control="bbr"
    ),
    Measurement("fp32-25", "fp32, 100 Mbit/s, 25 ms each way", _far(25), FAST, MODEL),
    Measurement("int8-25", "int8, 100 Mbit/s, 25 ms each way", _far(25), FAST, INT8),
    Measurement(
        "fp32-loss",
        "fp32, 100 Mbit/s, 10 ms each way, 2 % of all packets are lost",
        replace(_far(10), loss=0.02),
        FAST,
        replace(MODEL, values=MODEL_VALUES // 4),  # cubic gets 5 Mbit/s out of such a connection
        bare=False,
    ),
    Measurement("fp32-10", "fp32, 100 Mbit/s, 10 ms each way", _far(10), FAST, MODEL),
    Measurement(
        "fp32-relay",
        "the same, but two members only dial: a relay with 100 Mbit/s joins them",
        _far(10),
        FAST,
        replace(MODEL, sites=TWO_DIAL, relays=1),
        hosts=1,
        bare=False,
    ),
    Measurement(
        "slow-member",
        "100 Mbit/s and 10 ms each way, but one member has 10 down and 2 up, and only dials",
        _far(10),
        FAST,
        SMALLER,
        lines={
            SLOW_MEMBER: (LineQuality(delay_ms=10, mbit_s=2), LineQuality(mbit_s=10)),
        },
        limit_s=300.0,
        bare=False,
    ),
)
