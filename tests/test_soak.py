"""Random scenarios: their contents, reproducing one by its seed, and planned faults."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from defl.cli.sim import sim
from defl.committee import DEFAULTS, Rules
from defl.errors import UserError
from defl.ids import NodeId
from defl.messages import Message, Status, Timeout, Vote
from defl.node.setup.requirements import require_conditions
from defl.output import Event, Received
from defl.schema import Codec
from defl.sim.byzantine import KINDS
from defl.sim.byzantine.promises import PROMISE_BREAKERS
from defl.sim.conditions import (
    Censor,
    Conditions,
    Kill,
    OneWay,
    Rollback,
    parse_censor,
    parse_kill,
    parse_one_way,
    parse_partition,
    parse_rollback,
)
from defl.sim.run import Options, simulate
from defl.sim.scenario import cluster_of, federation_of, signers_of
from defl.sim.sim_node import SimNode
from defl.sim.soak import CHURN_ROUNDS, LARGE, OTHER_RULES, SIZES, scenario

SCENARIOS = [scenario(seed) for seed in range(3000)]


class Arrivals:
    """Counts received messages by type, sender and receiver."""

    def __init__(self, conditions: Conditions, rules: Rules = Rules.HOTSTUFF) -> None:
        self.pairs: Counter[tuple[type[Message], NodeId, NodeId]] = Counter()
        handle = SimNode.handle

        def counted(node: SimNode, event: Event) -> None:
            if cluster.now < conditions.planned_trouble_s and isinstance(event, Received):
                self.pairs[type(event.message), event.peer, node.id] += 1
            handle(node, event)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SimNode, "handle", counted)
            cluster = cluster_of(4, rounds=2, rules=rules, conditions=conditions)
            cluster.run()
        self.violations = cluster.conclude()


def test_scenarios_use_every_size_kind_of_fault_and_rule_set() -> None:
    sizes = Counter(options.nodes for options in SCENARIOS)
    conditions = [options.conditions for options in SCENARIOS]

    assert set(sizes) == set(SIZES)
    assert sizes[4] > sizes[10] > sizes[LARGE] > 0
    assert {options.charter.rules for options in SCENARIOS} == set(Rules)
    assert any(len(cut.groups) == 4 for c in conditions for cut in c.partitions)
    assert any(c.one_way for c in conditions)
    assert {censor.kind for c in conditions for censor in c.censors} >= {"Vote", "Timeout", "Chunk"}
    assert any(c.kills for c in conditions)
    assert any(c.rollbacks for c in conditions)
    late = [options for options in SCENARIOS if options.conditions.late_starts]
    assert len(late) > len(SCENARIOS) / 20
    assert {kind for options in late for kind, _ in options.byzantine} == set(PROMISE_BREAKERS)
    assert any(("changing", 1) in options.byzantine for options in SCENARIOS)
    assert all(options.rounds <= 2 for options in SCENARIOS if options.nodes == LARGE)


def test_in_many_scenarios_members_come_and_go_beside_all_other_faults_and_liars() -> None:
    churning = [options for options in SCENARIOS if options.conditions.churn]

    assert 0.3 < len(churning) / len(SCENARIOS) < 0.5
    assert {kind for options in churning for kind, _ in options.byzantine} == set(KINDS)
    assert any(options.conditions.partitions for options in churning)
    assert any(options.conditions.rollbacks for options in churning)
    assert any(options.conditions.crash_rate for options in churning)
    assert all(options.rounds >= CHURN_ROUNDS[0] for options in churning)


def test_most_scenarios_run_the_defaults_and_some_another_rule_or_codec() -> None:
    charters = [options.charter for options in SCENARIOS]

    for fact in ("aggregation", "codec"):
        default = [getattr(charter, fact) == getattr(DEFAULTS, fact) for charter in charters]
        assert 0.7 < sum(default) / len(SCENARIOS) < 0.9, fact
    assert {charter.aggregation for charter in charters} == set(OTHER_RULES)
    assert {charter.codec for charter in charters} == set(Codec)
    assert {charter.timing for charter in charters} == {DEFAULTS.timing}


def test_some_scenarios_have_models_of_many_chunks() -> None:
    many = [
        options for options in SCENARIOS if 4 * options.values > 4 * options.charter.chunk_bytes
    ]

    assert len(many) > len(SCENARIOS) / 20


def test_every_rule_of_a_scenario_can_be_computed_with_a_quorum() -> None:
    for nodes in SIZES:
        signers, _ = signers_of(nodes, seed=1, real=False)
        for rule in OTHER_RULES:
            federation, _ = federation_of(signers, rounds=1, aggregation=rule)
            require_conditions(federation, strict=False)


def test_some_scenarios_leave_exactly_a_quorum_that_all_restart() -> None:
    quorum_only = [
        options
        for options in SCENARIOS
        if options.byzantine == (("silent", (options.nodes - 1) // 3),)
        and (options.conditions.all_crash_at_s or len(options.conditions.kills) == options.nodes)
    ]

    assert len(quorum_only) > len(SCENARIOS) / 10


def test_every_scenario_becomes_calm() -> None:
    assert all(options.conditions.last_trouble_s <= 70 for options in SCENARIOS)


def test_a_seed_reproduces_its_scenario_and_its_run() -> None:
    seed = next(seed for seed in count(5000) if scenario(seed).nodes == 4)

    first, second = simulate(scenario(seed)), simulate(scenario(seed))

    assert first.options == second.options
    assert first.events == second.events
    assert first.bytes == second.bytes


def test_the_command_line_repeats_a_scenario_by_its_seed() -> None:
    seed = next(seed for seed in count(6000) if scenario(seed).nodes == 4)

    again = CliRunner().invoke(sim, ["--scenario", str(seed), "--json"])

    assert again.exit_code == 0, again.output
    assert f'"events": {simulate(scenario(seed)).events}' in again.output


def test_a_one_way_cut_silences_one_direction_and_all_rounds_close_after_it() -> None:
    cut = OneWay(frozenset({NodeId(1)}), frozenset({NodeId(2), NodeId(3)}), 0.0, 20.0)
    arrivals = Arrivals(Conditions(one_way=(cut,)))

    assert not arrivals.violations
    assert not arrivals.pairs[Status, NodeId(1), NodeId(2)]
    assert arrivals.pairs[Status, NodeId(2), NodeId(1)]
    assert arrivals.pairs[Status, NodeId(1), NodeId(0)]


@pytest.mark.parametrize("rules", list(Rules))
def test_after_votes_were_censored_all_rounds_close(rules: Rules) -> None:
    arrivals = Arrivals(Conditions(censors=(Censor("Vote", 0.0, 20.0),)), rules)

    assert not arrivals.violations
    kinds = {kind for kind, _, _ in arrivals.pairs}
    assert Vote not in kinds
    assert Timeout in kinds


def test_a_censor_with_a_source_and_target_drops_nothing_else() -> None:
    censor = Censor("Vote", 0.0, 20.0, source=NodeId(1), target=NodeId(2))

    assert censor.drops("Vote", NodeId(1), NodeId(2))
    assert not censor.drops("Vote", NodeId(1), NodeId(3))
    assert not censor.drops("Vote", NodeId(0), NodeId(2))
    assert not censor.drops("Timeout", NodeId(1), NodeId(2))


def test_a_quorum_whose_members_restart_in_isolation_makes_progress() -> None:
    """Regression: version 0.1 closed one round of six and then stopped forever."""
    conditions = Conditions(partitions=(parse_partition("0|2|3@6-30", 4),), all_crash_at_s=(25.0,))
    for rules in Rules:
        report = simulate(
            Options(
                rounds=6,
                seed=1_000_000,
                charter=replace(DEFAULTS, rules=rules),
                byzantine=(("silent", 1),),
                conditions=conditions,
            )
        )

        assert report.ok, report.violations
        assert report.rounds_closed == 6


def test_planned_faults_are_read_from_the_command_line() -> None:
    assert parse_one_way("0,1>2@1-2.5", 4) == OneWay(
        frozenset({NodeId(0), NodeId(1)}), frozenset({NodeId(2)}), 1.0, 2.5
    )
    assert parse_censor("Vote@1-2", 4) == Censor("Vote", 1.0, 2.0)
    assert parse_censor("Timeout:2@1-2", 4) == Censor("Timeout", 1.0, 2.0, source=NodeId(2))
    assert parse_censor("Vote:>3@1-2", 4) == Censor("Vote", 1.0, 2.0, target=NodeId(3))
    assert parse_censor("Vote:1>3@1-2", 4) == Censor("Vote", 1.0, 2.0, NodeId(1), NodeId(3))
    assert parse_kill("2@7.5", 4) == Kill(NodeId(2), 7.5)
    assert parse_rollback("2@7.5:40", 4) == Rollback(NodeId(2), 7.5, 40)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_partition, "0,1|1,2@1-2"),
        (parse_partition, "0,1|2@2-1"),
        (parse_one_way, "0,1@1-2"),
        (parse_one_way, "0>4@1-2"),
        (parse_censor, "Vote"),
        (parse_censor, "Vote@2"),
        (parse_censor, "Gossp@1-2"),
        (parse_censor, "Vote:9@1-2"),
        (parse_kill, "2"),
        (parse_kill, "7@1"),
        (parse_rollback, "2@1"),
        (parse_rollback, "2@1:0"),
        (parse_rollback, "7@1:5"),
    ],
)
def test_a_malformed_fault_option_is_refused_with_its_text(
    parse: Callable[[str, int], object], text: str
) -> None:
    with pytest.raises(UserError, match=re.escape(text.partition("@")[0])):
        parse(text, 4)
