"""Simulated faults: network, crashes, clocks, disks.

Faults are random, drawn from one seed, or planned with times. They strike until half of the rounds
have closed or `calm_after_s` has passed. Then the network is calm and progress is judged.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import isfinite
from random import Random
from typing import get_args

from defl.errors import UserError
from defl.ids import NodeId
from defl.messages import Message

MESSAGE_KINDS = tuple(kind.__name__ for kind in get_args(Message))

SLOWNESS = 10.0  # of the nodes that are slow
# Conditions that are shares or chances.
SHARES = (
    "loss",
    "duplication",
    "crash_rate",
    "power_loss_share",
    "disk_full_rate",
    "sync_failure_rate",
    "rot_rate",
)


def _require_seconds(name: str, value: float) -> None:
    if not (value >= 0 and isfinite(value)):
        raise UserError(f"{name} is a number of seconds, 0 or more, not {value}")


@dataclass(frozen=True, slots=True)
class Partition:
    """Between `start_s` and `end_s` only members of the same group reach each other."""

    groups: tuple[frozenset[NodeId], ...]
    start_s: float
    end_s: float

    def cuts(self, one: NodeId, other: NodeId) -> bool:
        return not any(one in group and other in group for group in self.groups)


@dataclass(frozen=True, slots=True)
class Rollback:
    """A member's disk is rolled back by some writes, and its node restarts."""

    member: NodeId
    at_s: float
    writes_ago: int


@dataclass(frozen=True, slots=True)
class OneWay:
    """Between `start_s` and `end_s` messages from `mute` do not reach `deaf`; the reverse do."""

    mute: frozenset[NodeId]
    deaf: frozenset[NodeId]
    start_s: float
    end_s: float

    def cuts(self, source: NodeId, target: NodeId) -> bool:
        return source in self.mute and target in self.deaf


@dataclass(frozen=True, slots=True)
class Censor:
    """Between `start_s` and `end_s` messages of one kind are lost, and no others."""

    kind: str  # as the report names it: Vote, Timeout, ...
    start_s: float
    end_s: float
    source: NodeId | None = None  # None: any sender
    target: NodeId | None = None  # None: any recipient

    def drops(self, kind: str, source: NodeId, target: NodeId) -> bool:
        return kind == self.kind and self.source in (None, source) and self.target in (None, target)


@dataclass(frozen=True, slots=True)
class Kill:
    """One node's process dies and is started again."""

    node: NodeId
    at_s: float


@dataclass(frozen=True, slots=True)
class LateStart:
    """One node's process is not started before."""

    node: NodeId
    at_s: float


@dataclass(frozen=True, slots=True)
class AccessLine:
    """A member's own line, which all chunks that it sends or receives share."""

    member: NodeId
    up_bytes_s: float
    down_bytes_s: float

    def __post_init__(self) -> None:
        if not (self.up_bytes_s > 0 and self.down_bytes_s > 0):
            raise UserError(f"the line of member {self.member} has rates above 0")


@dataclass(frozen=True, slots=True)
class WriteTimes:
    """Mean time that each kind of write takes; the times of single writes are exponential."""

    record_s: float = 0.002  # SQLite's transaction with its sync
    chunk_s: float = 0.003
    place_s: float = 0.001
    sync_s: float = 0.020
    drop_s: float = 0.001

    def __post_init__(self) -> None:
        for field in fields(self):
            _require_seconds(field.name, getattr(self, field.name))

    def slower(self, factor: float) -> "WriteTimes":
        return WriteTimes(*(getattr(self, field.name) * factor for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Conditions:
    latency_s: float = 0.02  # minimum time that a message takes
    jitter_s: float = 0.02  # mean of the exponential delay added to it, which reorders messages
    bandwidth_bytes_s: float = 10e6  # per link, for chunks; small messages have their own lane
    lines: tuple[AccessLine, ...] = ()  # members whose chunks share one line instead
    loss: float = 0.0  # share of messages that are lost
    duplication: float = 0.0  # share that arrives twice
    crash_rate: float = 0.0  # chance that a node dies while handling an event
    power_loss_share: float = 0.3  # share of the crashes that also lose what was not synced
    writes: WriteTimes = WriteTimes()
    disk_full_rate: float = 0.0  # chance that a node's disk fills up when it writes
    sync_failure_rate: float = 0.0  # chance that the sync of a blob fails
    rot_rate: float = 0.0  # chance that one of a node's chunks rots when it writes
    all_crash_at_s: tuple[float, ...] = ()  # every node dies at once
    downtime_s: float = 3.0  # mean time until a dead node is started again
    clock_skew: float = 0.0  # clocks run faster or slower by up to this share
    slow: frozenset[NodeId] = frozenset()  # nodes whose messages and work take ten times as long
    partitions: tuple[Partition, ...] = ()
    rollbacks: tuple[Rollback, ...] = ()
    one_way: tuple[OneWay, ...] = ()
    censors: tuple[Censor, ...] = ()
    kills: tuple[Kill, ...] = ()
    late_starts: tuple[LateStart, ...] = ()
    work_s: float = 0.5  # mean time that training takes
    work_factors: tuple[tuple[NodeId, float], ...] = ()  # members whose work takes longer or less
    # Noise of each work's time: lognormal with this sigma around work_s; None: exponential.
    work_sigma: float | None = None
    signature_s: float = 0.0  # time to verify one: 0.0001 on a real machine
    calm_after_s: float = 3600.0
    churn: float = 0.0  # chance per round that an operator proposes a change of the membership

    def __post_init__(self) -> None:
        for name in SHARES:
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise UserError(f"{name} is a share between 0 and 1 (excluded), not {value}")
        if not 0 <= self.churn <= 1:
            raise UserError(f"churn is a chance between 0 and 1, not {self.churn}")
        if not 0 <= self.clock_skew < 0.5:
            raise UserError(f"clock_skew is a share between 0 and 0.5, not {self.clock_skew}")
        for name in ("latency_s", "jitter_s", "downtime_s", "work_s", "signature_s"):
            _require_seconds(name, getattr(self, name))
        if not self.bandwidth_bytes_s > 0:
            raise UserError(f"bandwidth_bytes_s is more than 0, not {self.bandwidth_bytes_s}")
        # exp(10) is 22,000: beyond that no round of a run would close.
        if self.work_sigma is not None and not 0 <= self.work_sigma <= 10:
            raise UserError(f"work_sigma is a number between 0 and 10, not {self.work_sigma}")
        if any(factor <= 0 for _, factor in self.work_factors):
            raise UserError("a member's work takes a positive multiple of the others' time")

    def work_time(self, member: NodeId, rng: Random) -> float:
        """How long one training takes."""
        sigma = self.work_sigma
        noise = rng.expovariate(1.0) if sigma is None else rng.lognormvariate(0.0, sigma)
        slowness = SLOWNESS if member in self.slow else 1.0
        return noise * self.work_s * slowness * dict(self.work_factors).get(member, 1.0)

    @property
    def disturbing(self) -> bool:
        """Does anything other than liars hinder progress?"""
        planned = self.all_crash_at_s or self.kills or self.late_starts or self.rollbacks
        return bool(self._by_chance or planned or any(self._spans()))

    @property
    def _by_chance(self) -> bool:
        rates = (self.crash_rate, self.disk_full_rate, self.sync_failure_rate, self.rot_rate)
        return self.loss > 0 or max(rates) > 0

    @property
    def cuts(self) -> tuple[Partition | OneWay, ...]:
        return *self.partitions, *self.one_way

    def _spans(self) -> Iterator[Partition | OneWay | Censor]:
        """Planned faults that last."""
        yield from self.cuts
        yield from self.censors

    @property
    def planned_trouble_s(self) -> float:
        """When the last planned fault is over."""
        ends = (span.end_s for span in self._spans())
        kills = (kill.at_s for kill in self.kills)
        late_starts = (late.at_s for late in self.late_starts)
        rollbacks = (rollback.at_s for rollback in self.rollbacks)
        return max([0.0, *self.all_crash_at_s, *kills, *late_starts, *rollbacks, *ends])

    @property
    def last_trouble_s(self) -> float:
        """When the last planned or random fault is over."""
        return max(self.planned_trouble_s, self.calm_after_s if self._by_chance else 0.0)


def parse_rollback(text: str, members: int) -> Rollback:
    """'2@12:40': at second 12 node 2's disk is rolled back by 40 writes."""
    member, at, rest = text.partition("@")
    second, colon, writes = rest.partition(":")
    try:
        rollback = Rollback(NodeId(int(member)), float(second), int(writes))
    except ValueError:
        rollback = None
    if rollback is None or not at or not colon or rollback.writes_ago < 1:
        raise UserError(
            f"a rollback is written NODE@SECOND:WRITES, for example 2@12:40, not {text!r}"
        )
    if not 0 <= rollback.member < members:
        raise UserError(f"the rollback {text!r} must name a member from 0 to {members - 1}")
    return rollback


def parse_partition(text: str, members: int) -> Partition:
    """'0,1|2,3@10-30': two groups, from second 10 to second 30."""
    form = f"a partition is written GROUP|GROUP@START-END, for example 0,1|2,3@10-30, not {text!r}"
    groups_text, start, end = _span(text, form)
    groups = tuple(_members(group, text, members) for group in groups_text.split("|"))
    if len(frozenset().union(*groups)) != sum(map(len, groups)):
        raise UserError(f"the partition {text!r} names a member twice")
    return Partition(groups, start, end)


def parse_one_way(text: str, members: int) -> OneWay:
    """'0,1>2,3@10-30': 2 and 3 receive nothing from 0 and 1; the reverse direction works."""
    form = f"a one-way cut is written MUTE>DEAF@START-END, for example 0>2,3@10-30, not {text!r}"
    sides, start, end = _span(text, form)
    mute, arrow, deaf = sides.partition(">")
    if not arrow:
        raise UserError(form)
    return OneWay(_members(mute, text, members), _members(deaf, text, members), start, end)


def parse_censor(text: str, members: int) -> Censor:
    """'Vote@10-30': no votes; 'Timeout:2@10-30': none of node 2; 'Vote:>3@10-30': none to 3."""
    form = (
        f"a censor is written KIND[:SOURCE][>TARGET]@START-END, for example Vote@10-30 or "
        f"Timeout:2>3@10-30, not {text!r}"
    )
    what, start, end = _span(text, form)
    what, _, target = what.partition(">")
    kind, _, source = what.partition(":")
    if kind not in MESSAGE_KINDS:
        raise UserError(f"no message is named {kind!r}; there are: {', '.join(MESSAGE_KINDS)}")
    return Censor(
        kind, start, end, _one_member(source, text, members), _one_member(target, text, members)
    )


def parse_kill(text: str, members: int) -> Kill:
    """'2@10': node 2 is killed in second 10."""
    node, _, second = text.partition("@")
    try:
        at_s = float(second)
    except ValueError:
        raise UserError(f"a kill is written NODE@SECOND, for example 2@10, not {text!r}") from None
    return Kill(min(_members(node, text, members)), at_s)


def _span(text: str, form: str) -> tuple[str, float, float]:
    """The text before the @, and the times after it."""
    what, _, span = text.rpartition("@")
    start_text, _, end_text = span.partition("-")
    try:
        start, end = float(start_text), float(end_text)
    except ValueError:
        raise UserError(form) from None
    if not what or end <= start:
        raise UserError(form)
    return what, start, end


def _members(names: str, text: str, members: int) -> frozenset[NodeId]:
    numbers = names.split(",")
    if not all(number.isdecimal() and int(number) < members for number in numbers):
        raise UserError(f"{text!r} must name members 0 to {members - 1}, not {names!r}")
    return frozenset(NodeId(int(number)) for number in numbers)


def _one_member(name: str, text: str, members: int) -> NodeId | None:
    return min(_members(name, text, members)) if name else None
