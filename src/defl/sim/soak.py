"""Random scenarios until time is up. A seed decides the faults, liars, size and agreed facts."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct

from defl.aggregation.conditions import BLANCHARD
from defl.aggregation.rules import RULES
from defl.committee import CHUNK_BYTES_MIN, DEFAULTS, Charter, Rules, faults_of
from defl.engine.book import Engine, TaskFailed
from defl.engine.tasks import EngineTask
from defl.ids import NodeId
from defl.schema import Codec
from defl.sim.byzantine import KINDS
from defl.sim.byzantine.promises import PROMISE_BREAKERS
from defl.sim.conditions import (
    MESSAGE_KINDS,
    Censor,
    Conditions,
    Kill,
    LateStart,
    OneWay,
    Partition,
    Rollback,
    WriteTimes,
)
from defl.sim.run import Options, placed, simulate

# Small federations are fast and find most faults; sizes other than 3f + 1 have other quorums. The
# largest takes tens of seconds, so it is rare and has a round or two.
SIZES = {4: 30, 5: 12, 6: 10, 7: 16, 8: 8, 9: 8, 10: 10, 13: 5, 31: 1}
LARGE = 31
# Share of scenarios in which exactly a quorum is not silent, and all of its members restart.
QUORUM_ONLY_SHARE = 0.15
# Where one more member may fail: the share in which a disk is rolled back.
ROLLBACK_SHARE = 0.3
# Share of scenarios with a rule drawn from all, and with a codec drawn from all.
OTHER_SHARE = 0.3
# Rules that can be computed at every size; those of Krum's condition cannot with few members.
OTHER_RULES = [rule.name for rule in RULES.values() if rule.condition is not BLANCHARD]
# Share of scenarios in which members come and go; a change takes effect after two rounds or three.
CHURN_SHARE = 0.4
CHURN_ROUNDS = (4, 12)
CHURN_NODES_MAX = 10
# Share of the crashes that are power cuts: some, or nearly all, so that all holders of a blob are
# often among them.
POWER_LOSS_SHARES = (0.3, 0.3, 0.95)
# Share of scenarios in which up to f members start late while the liars break promises.
LATE_START_SHARE = 0.1
# Planned faults begin within this time and last no longer than the second one.
FAULTS_WITHIN_S = 30.0
FAULT_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Soaked:
    scenarios: int
    events: int
    by_kind: dict[str, int]  # how many scenarios of each size and rule set
    failures: dict[str, list[str]]  # the command that reproduces it -> what went wrong


def scenario(seed: int) -> Options:
    """One random scenario; the same seed always makes the same one."""
    rng = random.Random(f"soak/{seed}")
    nodes = rng.choices(list(SIZES), list(SIZES.values()))[0]
    quorum_only = rng.random() < QUORUM_ONLY_SHARE
    conditions = _conditions(rng, nodes)
    if quorum_only:
        conditions = replace(conditions, **_restarts(rng, nodes))
    rounds = rng.randint(1, 2) if nodes == LARGE else rng.randint(2, 6)
    rules = rng.choice(list(Rules))
    byzantine = _liars(rng, nodes, quorum_only=quorum_only)
    tau = rng.choice((DEFAULTS.tau, DEFAULTS.tau, DEFAULTS.tau + 1))
    values = rng.choice((16, 64, 300))
    # Even such a small model has several of the smallest chunks.
    chunk_bytes = rng.choice((CHUNK_BYTES_MIN, DEFAULTS.chunk_bytes))
    aggregation, codec = _rule_and_codec(random.Random(f"soak/rule/{seed}"))
    options = Options(
        nodes=nodes,
        rounds=rounds,
        seed=seed,
        charter=Charter(
            DEFAULTS.schema,
            tau=tau,
            rules=rules,
            aggregation=aggregation,
            codec=codec,
            chunk_bytes=chunk_bytes,
        ),
        values=values,
        byzantine=byzantine,
        conditions=conditions,
    )
    options = _with_churn(options, random.Random(f"soak/churn/{seed}"))
    options = _with_late_starts(options, random.Random(f"soak/late/{seed}"))
    power_loss_share = random.Random(f"soak/power/{seed}").choice(POWER_LOSS_SHARES)
    conditions = replace(options.conditions, power_loss_share=power_loss_share)
    options = replace(options, conditions=conditions)
    liars = placed(options)
    if len(liars) < faults_of(nodes) and rng.random() < ROLLBACK_SHARE:
        rollback = _rollback(rng, [NodeId(i) for i in range(nodes) if i not in liars])
        options = replace(options, conditions=replace(conditions, rollbacks=(rollback,)))
    return options


def _with_churn(options: Options, rng: random.Random) -> Options:
    """It has an `rng` of its own, so that scenarios without churn stay the same."""
    if rng.random() >= CHURN_SHARE or options.nodes > CHURN_NODES_MAX:
        return options
    conditions = replace(options.conditions, churn=rng.choice((0.2, 0.5, 1.0)))
    return replace(options, rounds=rng.randint(*CHURN_ROUNDS), conditions=conditions)


def _with_late_starts(options: Options, rng: random.Random) -> Options:
    """A quorum needs the late members, and is told that the liars are training."""
    if rng.random() >= LATE_START_SHARE:
        return options
    faults = faults_of(options.nodes)
    options = replace(options, byzantine=((rng.choice(list(PROMISE_BREAKERS)), faults),))
    honest = [NodeId(i) for i in range(options.nodes) if i not in placed(options)]
    late = rng.sample(honest, rng.randint(1, faults))
    starts = tuple(LateStart(node, rng.uniform(1, FAULTS_WITHIN_S)) for node in late)
    return replace(options, conditions=replace(options.conditions, late_starts=starts))


def _rule_and_codec(rng: random.Random) -> tuple[str, Codec]:
    """Mostly those that ship. They have an `rng` of their own, so that the rest of a scenario stays
    the same when there are more of them."""
    other_rule, other_codec = rng.choice(OTHER_RULES), rng.choice(list(Codec))
    return (
        other_rule if rng.random() < OTHER_SHARE else DEFAULTS.aggregation,
        other_codec if rng.random() < OTHER_SHARE else DEFAULTS.codec,
    )


def _rollback(rng: random.Random, honest: list[NodeId]) -> Rollback:
    return Rollback(
        rng.choice(honest), rng.uniform(1, FAULTS_WITHIN_S), rng.choice((1, 5, 30, 200))
    )


def _liars(rng: random.Random, nodes: int, *, quorum_only: bool) -> tuple[tuple[str, int], ...]:
    faults = faults_of(nodes)
    if quorum_only:
        return (("silent", faults),)
    kinds = [rng.choice(list(KINDS)) for _ in range(rng.randint(0, faults))]
    return tuple((kind, kinds.count(kind)) for kind in sorted(set(kinds)))


def _restarts(rng: random.Random, nodes: int) -> dict[str, Any]:
    """All members restart, together or one by one, isolated from each other or not."""
    start, end = _span(rng)
    apart = Partition(tuple(frozenset({NodeId(i)}) for i in range(nodes)), start, end)
    together = rng.random() < 0.5
    times = [rng.uniform(start, end + 5) for _ in range(rng.randint(1, 3))]
    kills = [Kill(NodeId(i), rng.uniform(start, end + 5)) for i in range(nodes)]
    return {
        "partitions": (apart,) if rng.random() < 0.7 else (),
        "all_crash_at_s": tuple(times) if together else (),
        "kills": () if together else tuple(kills),
    }


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
        all_crash_at_s=tuple(rng.uniform(0.5, 40) for _ in range(rng.choice((0, 0, 1, 2)))),
        clock_skew=sometimes(0.3, 0.2),
        slow=frozenset({NodeId(rng.randrange(nodes))} if rng.random() < 0.2 else ()),
        partitions=tuple(_partition(rng, nodes) for _ in range(rng.choice((0, 0, 1, 3)))),
        one_way=tuple(_one_way(rng, nodes) for _ in range(rng.choice((0, 0, 0, 1, 2)))),
        censors=tuple(_censor(rng, nodes) for _ in range(rng.choice((0, 0, 0, 1, 2)))),
        work_s=rng.choice((0.1, 0.5, 3.0)),
        calm_after_s=60.0,
        signature_s=rng.choice((0.0, 0.0001, 0.0005)),
        writes=WriteTimes().slower(rng.choice((0.0, 1.0, 1.0, 30.0))),
        sync_failure_rate=sometimes(0.2, 0.1),
        rot_rate=sometimes(0.2, 0.02),
    )


def _span(rng: random.Random) -> tuple[float, float]:
    start = rng.uniform(0, FAULTS_WITHIN_S)
    return start, start + rng.uniform(1, FAULT_S_MAX)


def _partition(rng: random.Random, nodes: int) -> Partition:
    """Into 2 to n groups; some are left empty by chance."""
    count = rng.randint(2, nodes)
    group_of = [rng.randrange(count) for _ in range(nodes)]
    groups = (
        frozenset(NodeId(i) for i in range(nodes) if group_of[i] == group) for group in range(count)
    )
    return Partition(tuple(group for group in groups if group), *_span(rng))


def _one_way(rng: random.Random, nodes: int) -> OneWay:
    def some() -> frozenset[NodeId]:
        return frozenset(NodeId(i) for i in rng.sample(range(nodes), rng.randint(1, nodes - 1)))

    return OneWay(some(), some(), *_span(rng))


def _censor(rng: random.Random, nodes: int) -> Censor:
    def one_or_any() -> NodeId | None:
        return NodeId(rng.randrange(nodes)) if rng.random() < 0.3 else None

    return Censor(rng.choice(MESSAGE_KINDS), *_span(rng), one_or_any(), one_or_any())


class ScenarioOutcome(Struct, frozen=True):
    seed: int
    kind: str
    events: int
    ok: bool
    violations: list[str]


def perform_scenario(argument: bytes) -> bytes:
    """In an engine's worker: the seed's scenario."""
    seed = msgspec.json.decode(argument, type=int)
    options = scenario(seed)
    report = simulate(options)
    kind = f"n={options.nodes} {options.charter.rules.value}"
    return msgspec.json.encode(
        ScenarioOutcome(seed, kind, report.events, report.ok, report.violations)
    )


def command(seed: int) -> str:
    return f"defl sim --scenario {seed}"


def soak(seconds: float, seed: int, engine: Engine, progress: Callable[[int, int], None]) -> Soaked:
    """Start scenarios until time is up, and wait for the last ones."""
    until = monotonic() + seconds

    def tasks() -> Iterator[EngineTask]:
        for number in count(seed):
            if monotonic() >= until:
                return
            yield EngineTask("sim.scenario", msgspec.json.encode(number), command(number))

    failures: dict[str, list[str]] = {}
    by_kind: dict[str, int] = {}
    scenarios = events = 0
    with closing(engine.run(tasks())) as outcomes:
        for outcome in outcomes:
            scenarios += 1
            if isinstance(outcome, TaskFailed):
                failures[outcome.task.name] = outcome.error.splitlines()
            else:
                result = msgspec.json.decode(outcome.value, type=ScenarioOutcome)
                events += result.events
                by_kind[result.kind] = by_kind.get(result.kind, 0) + 1
                if not result.ok:
                    failures[command(result.seed)] = result.violations
            progress(scenarios, len(failures))
    return Soaked(scenarios, events, dict(sorted(by_kind.items())), dict(sorted(failures.items())))
