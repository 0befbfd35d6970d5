"""Random scenarios until time is up: which faults, which liars, how many nodes, all from a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from defl.committee import Rules
from defl.ids import NodeId
from defl.sim.byzantine import KINDS
from defl.sim.conditions import Conditions, Partition
from defl.sim.run import Options, Report, simulate

SIZES = (4, 7, 10)


@dataclass(frozen=True, slots=True)
class Soaked:
    scenarios: int
    events: int
    by_kind: dict[str, int]  # how many scenarios of each size and rule set
    failures: list[tuple[int, Report]]  # the seed that reproduces it


def scenario(seed: int) -> Options:
    """One random scenario; the same seed always makes the same one."""
    rng = random.Random(f"soak/{seed}")
    nodes = rng.choice(SIZES)
    faults = (nodes - 1) // 3
    liars = rng.randint(0, faults)
    kinds = [rng.choice(list(KINDS)) for _ in range(liars)]
    return Options(
        nodes=nodes,
        rounds=rng.randint(2, 6),
        seed=seed,
        rules=rng.choice(list(Rules)),
        byzantine=tuple((kind, kinds.count(kind)) for kind in sorted(set(kinds))),
        tau=rng.choice((2, 2, 3)),
        conditions=_conditions(rng, nodes),
        values=rng.choice((16, 64, 300)),
        chunk_bytes=rng.choice((256, 4096)),
    )


def _conditions(rng: random.Random, nodes: int) -> Conditions:
    def sometimes(share: float, value: float) -> float:
        return value if rng.random() < share else 0.0

    return Conditions(
        latency_s=rng.choice((0.001, 0.02, 0.1)),
        jitter_s=rng.choice((0.001, 0.02, 0.2)),
        bandwidth_bytes_s=rng.choice((2e3, 1e5, 1e7)),
        loss=sometimes(0.5, rng.uniform(0, 0.2)),
        duplication=sometimes(0.3, rng.uniform(0, 0.2)),
        crash_rate=sometimes(0.5, rng.choice((0.004, 0.04, 0.1)) / nodes),
        disk_full_rate=sometimes(0.2, 0.005),
        all_crash_at_s=tuple(rng.uniform(0.5, 20) for _ in range(rng.choice((0, 0, 1, 2)))),
        clock_skew=sometimes(0.3, 0.2),
        slow=frozenset({NodeId(rng.randrange(nodes))} if rng.random() < 0.2 else ()),
        partitions=_partitions(rng, nodes),
        work_s=rng.choice((0.1, 0.5, 3.0)),
        calm_after_s=60.0,
        signature_s=rng.choice((0.0, 0.0001, 0.0005)),
    )


def _partitions(rng: random.Random, nodes: int) -> tuple[Partition, ...]:
    partitions = []
    for _ in range(rng.choice((0, 0, 1, 3))):
        members = [NodeId(i) for i in range(nodes)]
        rng.shuffle(members)
        cut = rng.randint(1, nodes - 1)
        start = rng.uniform(0, 30)
        groups = (frozenset(members[:cut]), frozenset(members[cut:]))
        partitions.append(Partition(groups, start, start + rng.uniform(1, 30)))
    return tuple(partitions)


def soak(seconds: float, seed: int, progress: Callable[[int, int], None]) -> Soaked:
    until = monotonic() + seconds
    failures: list[tuple[int, Report]] = []
    by_kind: dict[str, int] = {}
    scenarios = events = 0
    while monotonic() < until:
        options = scenario(seed + scenarios)
        report = simulate(options)
        scenarios += 1
        events += report.events
        kind = f"n={options.nodes} {options.rules.value}"
        by_kind[kind] = by_kind.get(kind, 0) + 1
        if not report.ok:
            failures.append((options.seed, report))
        progress(scenarios, len(failures))
    return Soaked(scenarios, events, dict(sorted(by_kind.items())), failures)
