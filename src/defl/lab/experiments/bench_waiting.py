"""Measures how long simulated rounds wait for slow, silent and promise-breaking members.

Each case is a whole federation in the simulator: real code except network, disk, clock and
training. Everything but the wall time follows from the seed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from defl.committee import faults_of
from defl.ids import NodeId, Round
from defl.output import Notice, RoundClosed
from defl.sim.byzantine import KINDS
from defl.sim.byzantine.promises import PROMISE_BREAKERS
from defl.sim.conditions import Conditions
from defl.sim.presence import ROUNDS_TO_LEARN
from defl.sim.run import Options, placed
from defl.sim.scenario import cluster_of

SILENT = "silent"
FACTORS = (1.2, 5.0, 50.0)
STEADY, NOISY = 0.1, 0.3  # sigma of training times


@dataclass(frozen=True, slots=True)
class WaitingCase:
    name: str
    factor: float = 1.0  # of the last member's work
    sigma: float = STEADY
    liars: str | None = None  # f of this kind


@dataclass(frozen=True, slots=True)
class WaitingMeasurement:
    case: WaitingCase
    rounds: int
    virtual_s: float
    first_round_s: float
    share: float  # of rounds after the learning phase that include the last member's update
    least_share: float  # the same for the honest member with the smallest share
    holds: bool  # all of the simulator's checks

    def as_json(self) -> dict[str, Any]:
        return {
            "case": self.case.name,
            "rounds": self.rounds,
            "virtual_s": round(self.virtual_s, 1),
            "first_round_s": round(self.first_round_s, 1),
            "share": round(self.share, 4),
            "least_share": round(self.least_share, 4),
            "holds": self.holds,
        }


def cases() -> Iterator[WaitingCase]:
    yield WaitingCase("equal")
    for factor in FACTORS:
        yield WaitingCase(f"slow x{factor:g}", factor)
        yield WaitingCase(f"slow x{factor:g} noisy", factor, NOISY)
    for kind in (SILENT, *PROMISE_BREAKERS):
        yield WaitingCase(kind, liars=kind)


def measure(case: WaitingCase, nodes: int, rounds: int, seed: int) -> WaitingMeasurement:
    """Run with the simulator's default waiting bounds and half a second of training."""
    faults = faults_of(nodes)
    liars = ((case.liars, faults),) if case.liars is not None else ()
    slow = NodeId(nodes - 1)
    closed: dict[Round, frozenset[NodeId]] = {}

    def on_notice(_node: NodeId, notice: Notice) -> None:
        if isinstance(notice, RoundClosed):
            closed[notice.round] = frozenset(notice.updates)

    places = placed(Options(nodes=nodes, byzantine=liars))
    cluster = cluster_of(
        nodes,
        rounds=rounds,
        seed=seed,
        conditions=Conditions(work_sigma=case.sigma, work_factors=((slow, case.factor),)),
        byzantine={member: KINDS[kind] for member, kind in places.items()},
        on_notice=on_notice,
    )
    cluster.run()
    cluster.conclude()
    judged = [authors for round_, authors in closed.items() if round_ > ROUNDS_TO_LEARN]
    shares = {
        node.id: sum(node.id in authors for authors in judged) / max(1, len(judged))
        for node in cluster.honest
    }
    closed_at = cluster.checker.closed_at
    return WaitingMeasurement(
        case=case,
        rounds=cluster.rounds_closed,
        virtual_s=max(closed_at.values(), default=cluster.now),
        first_round_s=closed_at.get(Round(1), cluster.now),
        share=shares.get(slow, 0.0),
        least_share=min(shares.values()),
        holds=all(cluster.checker.verdicts.values()),
    )


def bench_waiting(
    nodes: int, rounds: int, seed: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    rows = []
    silent_s = 0.0
    for case in cases():
        progress(f"{nodes} members, {rounds} rounds: {case.name}")
        measured = measure(case, nodes, rounds, seed)
        if case.liars == SILENT:
            silent_s = measured.virtual_s
        row = measured.as_json()
        if case.liars is not None:
            row["times_silent"] = round(measured.virtual_s / silent_s, 3)
        rows.append(row)
    return {"nodes": nodes, "rounds": rounds, "seed": seed, "cases": rows}
