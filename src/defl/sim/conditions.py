"""What a simulated world does to its nodes: the network, the crashes, the clocks, the disks.

All of it is chance drawn from one seed, or stated with times. Faults strike until half of the
rounds have closed or `calm_after_s` has passed; then the world is calm, and progress is judged.
"""

from dataclasses import dataclass
from random import Random

from defl.errors import UserError
from defl.ids import NodeId

SLOWNESS = 10.0  # of the nodes that are slow


@dataclass(frozen=True, slots=True)
class Partition:
    """Between `start_s` and `end_s` only members of one group hear each other."""

    groups: tuple[frozenset[NodeId], ...]
    start_s: float
    end_s: float

    def cuts(self, one: NodeId, other: NodeId) -> bool:
        return not any(one in group and other in group for group in self.groups)


@dataclass(frozen=True, slots=True)
class Conditions:
    latency_s: float = 0.02  # the least time a message takes
    jitter_s: float = 0.02  # mean of what is added, exponentially distributed: reorders messages
    bandwidth_bytes_s: float = 10e6  # per link, for chunks; small messages have their own lane
    loss: float = 0.0  # share of messages that are lost
    duplication: float = 0.0  # share that arrives twice
    crash_rate: float = 0.0  # chance that a node dies while handling an event
    power_loss_share: float = 0.3  # share of the crashes that also lose what was not synced
    disk_full_rate: float = 0.0  # chance that a node's disk fills up when it writes
    all_crash_at_s: tuple[float, ...] = ()  # every node dies at once
    downtime_s: float = 3.0  # mean time until a dead node is started again
    clock_skew: float = 0.0  # clocks run faster or slower by up to this share
    slow: frozenset[NodeId] = frozenset()  # nodes whose messages and work take ten times as long
    partitions: tuple[Partition, ...] = ()
    work_s: float = 0.5  # mean time that training takes
    work_factors: tuple[tuple[NodeId, float], ...] = ()  # members whose work takes longer or less
    # Noise of each work's time: lognormal with this sigma around work_s; None: exponential.
    work_sigma: float | None = None
    signature_s: float = 0.0  # that verifying one takes: 0.0001 on a real machine
    calm_after_s: float = 3600.0

    def __post_init__(self) -> None:
        for name in ("loss", "duplication", "crash_rate", "power_loss_share", "disk_full_rate"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise UserError(f"{name} is a share between 0 and 1 (excluded), not {value}")
        if not 0 <= self.clock_skew < 0.5:
            raise UserError(f"clock_skew is a share between 0 and 0.5, not {self.clock_skew}")
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
        """Does anything but liars stand in the way of progress?"""
        by_chance = self.loss or self.crash_rate or self.disk_full_rate
        return bool(by_chance or self.partitions or self.all_crash_at_s)

    @property
    def planned_trouble_s(self) -> float:
        """When the last planned fault is over."""
        ends = (partition.end_s for partition in self.partitions)
        return max([0.0, *self.all_crash_at_s, *ends])

    @property
    def last_trouble_s(self) -> float:
        """The same, or until when chance is allowed to strike at most."""
        by_chance = self.loss or self.crash_rate or self.disk_full_rate
        return max(self.planned_trouble_s, self.calm_after_s if by_chance else 0.0)


def parse_partition(text: str, members: int) -> Partition:
    """'0,1|2,3@10-30': two groups, from second 10 to second 30."""
    wrong = UserError(
        f"a partition is written GROUP|GROUP@START-END, for example 0,1|2,3@10-30, not {text!r}"
    )
    groups_text, at, span = text.partition("@")
    start, dash, end = span.partition("-")
    try:
        groups = tuple(
            frozenset(NodeId(int(member)) for member in group.split(","))
            for group in groups_text.split("|")
        )
        partition = Partition(groups, float(start), float(end))
    except ValueError:
        raise wrong from None
    named = [member for group in groups for member in group]
    if not at or not dash or partition.end_s <= partition.start_s:
        raise wrong
    if len(set(named)) != len(named) or any(not 0 <= member < members for member in named):
        raise UserError(f"the partition {text!r} must name members 0 to {members - 1}, each once")
    return partition
