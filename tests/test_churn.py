"""Simulated federations whose members come and go, with every kind of liar and fault."""

import json
from collections.abc import Iterable
from functools import partial
from itertools import chain
from statistics import mean

import pytest
from click.testing import CliRunner

from defl.cards import Card
from defl.changes import Add, Remove, ReplaceKey, Rounds
from defl.cli.sim import sim
from defl.committee import Rules
from defl.errors import UserError
from defl.ids import OUTSIDER, Digest, NodeId, Round
from defl.messages import Message, Proposal
from defl.output import Committed, Departed, EpochBegan, Notice, RoundClosed
from defl.participant import Participant
from defl.sim.byzantine import KINDS
from defl.sim.churn import Churn
from defl.sim.conditions import Conditions, Partition
from defl.sim.disk import Disk
from defl.sim.run import Options, SimReport, simulate
from defl.sim.scenario import cluster_of, signer_of
from support.epochs import Churn as Scripted

ROUNDS = 8


def churned(
    seed: int, *kinds: str, nodes: int = 5, rounds: int = ROUNDS, **conditions: object
) -> SimReport:
    """A federation in which somebody proposes a change in every round."""
    options = Options(
        nodes=nodes,
        rounds=rounds,
        seed=seed,
        byzantine=tuple((kind, 1) for kind in kinds),
        conditions=Conditions(churn=1.0, **conditions),  # type: ignore[arg-type]
    )
    return simulate(options)


@pytest.mark.parametrize("seed", range(1, 5))
def test_members_come_and_go_in_every_round(seed: int) -> None:
    report = churned(seed)

    assert report.violations == []
    assert report.boundaries
    assert report.rounds_closed == report.rounds


def test_each_kind_of_change_happens_in_some_run() -> None:
    seen: set[str] = set()
    for boundary in chain.from_iterable(churned(seed).boundaries for seed in range(1, 21)):
        seen |= {name for name in ("joined", "left", "replaced") if getattr(boundary, name)}
        seen |= {"rounds"} if boundary.rounds != ROUNDS else set()
        if seen == {"joined", "left", "replaced", "rounds"}:
            return

    pytest.fail(f"only {seen} happened")


@pytest.mark.parametrize("kind", list(KINDS))
def test_churn_with_every_kind_of_liar(kind: str) -> None:
    reports = [churned(2, kind, rounds=5)]
    while not reports[-1].boundaries and len(reports) < 5:  # nothing was agreed in time
        reports.append(churned(2 + len(reports), kind, rounds=5))

    assert [report.violations for report in reports] == [[]] * len(reports)
    assert reports[-1].boundaries


@pytest.mark.parametrize("kinds", [("agitator", "revenant"), ("usurper", "suffixer")])
@pytest.mark.parametrize("seed", [1, 2])
def test_liars_about_the_membership_change_nothing(seed: int, kinds: tuple[str, ...]) -> None:
    report = churned(seed, *kinds, nodes=7)

    assert report.violations == []
    assert report.rounds_closed == report.rounds


@pytest.mark.parametrize("seed", range(1, 4))
def test_nodes_are_killed_again_and_again_while_members_come_and_go(seed: int) -> None:
    report = churned(seed, crash_rate=0.02, loss=0.05)

    assert report.violations == []
    assert report.crashes
    assert report.boundaries


def test_everybody_is_cut_in_two_while_members_come_and_go() -> None:
    halves = frozenset({NodeId(0), NodeId(1)}), frozenset({NodeId(2), NodeId(3), NodeId(4)})
    report = churned(3, partitions=(Partition(halves, 4.0, 20.0),))

    assert report.violations == []
    assert report.boundaries


def test_one_seed_makes_one_run() -> None:
    def text(seed: int) -> str:
        report = churned(seed).as_json()
        del report["wall_s"]
        return json.dumps(report)

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_who_has_left_is_switched_off_and_missed_by_nobody() -> None:
    left: list[NodeId] = []
    seeds = iter(range(1, 6))
    while not left:  # not everybody proposes that somebody goes
        cluster = cluster_of(
            5,
            rounds=ROUNDS,
            seed=next(seeds),
            conditions=Conditions(churn=1.0),
            on_notice=lambda node, what: left.append(node) if isinstance(what, Departed) else None,
        )
        cluster.run()
        assert cluster.conclude() == []
    for machine in left:
        assert cluster.nodes[machine].stopped
        assert cluster.nodes[machine].behaviour.participant.me == OUTSIDER


def test_both_rule_sets_cross_boundaries() -> None:
    for rules in Rules:
        report = CliRunner().invoke(
            sim, ["--churn", "1", "--rounds", "6", "--rules", rules.value, "--json"]
        )
        assert report.exit_code == 0, report.output
        assert json.loads(report.output)["epochs"] > 1


def test_the_report_names_each_boundary() -> None:
    shown = CliRunner().invoke(sim, ["--churn", "1", "--rounds", "6"]).output

    assert "epochs          " in shown
    assert "epoch 1 from round " in shown
    assert "epochs          " not in CliRunner().invoke(sim, ["--rounds", "1"]).output


@pytest.mark.parametrize("rules", list(Rules))
def test_a_boundary_costs_no_round_and_less_than_a_commit(rules: Rules) -> None:
    """In virtual time: from the close of the last round to the proof that the epoch has ended."""
    churn = Scripted(4, rounds=6, rules=rules)
    checker = churn.cluster.checker
    proposed: dict[Digest, float] = {}
    commits: dict[Digest, float] = {}
    closed: dict[NodeId, float] = {}
    waits: list[float] = []
    sent, committed, notice = checker.sent, checker.committed, checker.notice

    def watch_sent(
        node: NodeId, message: Message, epoch: int = 0, disk: Disk | None = None
    ) -> None:
        if isinstance(message, Proposal):
            proposed.setdefault(message.block.id, churn.cluster.now)
        sent(node, message, epoch, disk)

    def watch_committed(node: NodeId, items: Iterable[Committed]) -> None:
        blocks = tuple(items)
        for item in blocks:
            if item.block.id in proposed:
                commits.setdefault(item.block.id, churn.cluster.now - proposed[item.block.id])
        committed(node, blocks)

    def watch_notice(node: NodeId, what: Notice, now: float, participant: Participant) -> None:
        if isinstance(what, RoundClosed):
            closed[node] = now
        elif isinstance(what, EpochBegan):
            waits.append(now - closed[node])
        notice(node, what, now, participant)

    checker.sent, checker.committed, checker.notice = watch_sent, watch_committed, watch_notice
    churn.run_until_round(2)
    churn.change(Rounds(Round(7)))
    churn.finish()

    assert churn.cluster.conclude() == []
    assert sorted(checker.closed_at) == list(range(1, 8))
    assert len(waits) == 4
    assert max(waits) <= mean(commits.values())


def test_a_chance_is_between_none_and_one() -> None:
    with pytest.raises(UserError, match="churn"):
        Conditions(churn=1.5)


def test_operators_approve_no_more_faulty_members_than_f() -> None:
    """Five members and a liar: without one of the honest ones f stays 1; with a second machine
    that nobody has set up, it is not enough."""
    cluster = cluster_of(5, byzantine={NodeId(1): KINDS["silent"]}, rounds=ROUNDS)
    churn = Churn(cluster, partial(signer_of, seed=1, real=False))
    federation = cluster.federation
    ghost = Card("ghost", bytes(32), b"", "", 0, b"")

    assert churn.is_safe(federation, (Remove(NodeId(0)),))
    assert not churn.is_safe(federation, (Add(ghost),))
    assert not churn.is_safe(federation, (ReplaceKey(NodeId(0), ghost),))
    assert churn.is_safe(federation, (ReplaceKey(NodeId(1), ghost),))
