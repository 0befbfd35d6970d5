"""The simulator runs what real federations get: one statement of the defaults, and other facts by
the same options."""

import inspect
from pathlib import Path

import click
import pytest
from msgspec.structs import asdict, replace

from defl.aggregation.aggregate import AggregationResult
from defl.cli.federation import create
from defl.cli.sim import sim
from defl.committee import DEFAULTS, Charter, Federation, Rules, Timing
from defl.founding import check_founded
from defl.ids import NodeId, Round
from defl.node.setup.local import make_local
from defl.output import Aggregate
from defl.running.plan import GRACE_S, ProjectSettings, timing_of
from defl.running.runner import run
from defl.schema import Codec, Row
from defl.sim import aggregates
from defl.sim import run as sim_run
from defl.sim.aggregates import COMPUTED, SharedAggregates
from defl.sim.cluster import Cluster
from defl.sim.run import Options
from defl.sim.scenario import cluster_of
from defl.simulating import simulate
from defl.work import Blob, Read, aggregate
from support.founding import agree, defl, init_nodes

# These say which model it is, not how a federation works.
OF_THE_MODEL = ("initial", "document")

Computed = tuple[Blob, AggregationResult]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    """The clusters that `defl sim` makes; they are made and not run."""
    clusters: list[Cluster] = []

    def noted(*arguments: object, **facts: object) -> Cluster:
        cluster = cluster_of(*arguments, **facts)  # type: ignore[arg-type]
        clusters.append(cluster)
        cluster.run = lambda **_: None  # type: ignore[method-assign]
        return cluster

    monkeypatch.setattr(sim_run, "cluster_of", noted)
    return clusters


def facts_of(federation: Federation) -> dict[str, object]:
    facts = {**asdict(federation.charter), "faults_max": federation.updates_faults_max}
    return {name: value for name, value in facts.items() if name not in OF_THE_MODEL}


def test_defl_sim_runs_the_federation_that_defl_federation_create_writes(
    tmp_path: Path, simulated: list[Cluster]
) -> None:
    """Schema included: the default rule's memory is an entry of both models."""
    written = agree(tmp_path, init_nodes(tmp_path)).federation

    defl("sim", "--nodes", 4, "--json")

    assert facts_of(simulated[0].federation) == facts_of(written)
    check_founded(simulated[0].federation)


def test_other_facts_have_the_same_options_in_both_commands(
    tmp_path: Path, simulated: list[Cluster]
) -> None:
    options = (
        *("--tau", 3, "--rules", "jolteon", "--agg-quorum", "paper", "--aggregation", "multi_krum"),
        *("--faults-max", 0, "--codec", "int8", "--chunk-bytes", 512, "--view-base-s", 2),
        *("--view-cap-s", 30, "--gst-lt-min-s", 3, "--gst-lt-max-s", 300, "--grace-s", 5),
    )
    written = agree(tmp_path, init_nodes(tmp_path), *options).federation

    defl("sim", "--nodes", 4, *options)

    facts = facts_of(written)
    assert facts_of(simulated[0].federation) == facts
    plain = {**asdict(DEFAULTS), "faults_max": 1}
    assert all(facts[name] != plain[name] for name in facts), "an option is missing above"


def test_the_options_of_both_commands_have_the_same_defaults_and_help() -> None:
    facts = {*Charter.__struct_fields__, *Timing.__struct_fields__}

    def described(command: click.Command) -> dict[str | None, tuple[object, ...]]:
        return {
            option.name: (option.opts, option.default, option.help)
            for option in command.params
            if isinstance(option, click.Option) and option.name in facts
        }

    assert described(sim) == described(create)
    assert described(create).keys() == facts - {"schema", "timing", *OF_THE_MODEL}


def test_the_python_functions_have_these_defaults_too() -> None:
    for function in (simulate, run, make_local):
        for name, parameter in inspect.signature(function).parameters.items():
            if name in Charter.__struct_fields__ and parameter.default is not parameter.empty:
                assert parameter.default == getattr(DEFAULTS, name), (function, name)


def test_defl_run_differs_from_the_defaults_in_the_time_to_serve_others_alone() -> None:
    timing = timing_of(ProjectSettings(), None, None)

    assert timing == replace(DEFAULTS.timing, grace_s=GRACE_S)


def test_the_default_options_of_a_simulation_are_the_defaults_of_a_federation() -> None:
    assert Options().charter is DEFAULTS
    assert cluster_of(4).federation.charter.chunk_bytes == DEFAULTS.chunk_bytes


def test_a_rule_that_cannot_be_computed_is_refused_as_at_the_founding() -> None:
    refused = defl("sim", "--nodes", 4, "--aggregation", "krum")

    assert refused.code == 2
    assert "krum can be computed at m = n - f = 3" in refused.text


def test_a_model_of_many_chunks_is_fetched_chunk_by_chunk() -> None:
    report = defl("sim", "--rounds", 1, "--values", 1000, "--chunk-bytes", 512, "--json").json

    updates = 4 * 3  # each member's, to the three others
    assert report["messages"]["Chunk"] >= updates * 1000 * 4 / 512
    assert all(report["checks"].values())


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("aggregation", [DEFAULTS.aggregation, "fed_avg", "trimmed_mean"])
def test_all_checks_hold_with_other_rules_and_codecs(aggregation: str, codec: Codec) -> None:
    charter = replace(DEFAULTS, rules=Rules.JOLTEON, aggregation=aggregation, codec=codec)

    report = sim_run.simulate(Options(rounds=3, charter=charter))

    assert report.ok, report.violations


# --- The rule and the checks ---------------------------------------------------------------------


class Weighing(SharedAggregates):
    """Notes the members that the rule leaves out, by round."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out: dict[int, set[NodeId]] = {}

    def __call__(self, federation: Federation, work: Aggregate, read: Read) -> Computed:
        blob, result = super().__call__(federation, work, read)
        pairs = zip(work.updates, result.weights, strict=True)
        self.left_out[work.round] = {update.author for update, weight in pairs if weight == 0}
        return blob, result


def test_an_honest_member_that_the_rule_leaves_out_is_still_in_every_round() -> None:
    """Fairness is to be in the round; what the rule then makes of the update is its own matter."""
    odd = NodeId(6)
    cluster = cluster_of(7, rounds=4)
    honest, weighing = cluster._training, Weighing()

    def train(node: NodeId, round_: Round, base: Row) -> Row | None:
        row = honest(node, round_, base)
        return base - 10 * (row - base) if node == odd and row is not None else row

    cluster._training, cluster._aggregating = train, weighing
    cluster.run()

    assert not cluster.conclude()
    assert weighing.left_out == {round_: {odd} for round_ in (1, 2, 3, 4)}
    closed = cluster.honest[0].behaviour.participant.state.closed
    assert all(odd in {update.author for update in round_.updates} for round_ in closed)


# --- Shared aggregates ---------------------------------------------------------------------------


def test_two_nodes_compute_each_aggregate_and_the_others_take_it_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[int] = []

    def counted(federation: Federation, work: Aggregate, read: Read) -> Computed:
        computed.append(work.round)
        return aggregate(federation, work, read)

    monkeypatch.setattr(aggregates, "aggregate", counted)
    cluster = cluster_of(7, rounds=3)
    cluster.run()

    assert not cluster.conclude()
    assert sorted(computed) == [1] * COMPUTED + [2] * COMPUTED + [3] * COMPUTED


def test_a_second_node_that_computes_other_bits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def unsteady(federation: Federation, work: Aggregate, read: Read) -> Computed:
        nonlocal calls
        calls += 1
        if calls == 2:
            work = replace(work, updates=work.updates[1:], weights=work.weights[1:])
        return aggregate(federation, work, read)

    monkeypatch.setattr(aggregates, "aggregate", unsteady)
    cluster = cluster_of(4, rounds=1)
    cluster.run()

    assert any("computed another model" in violation for violation in cluster.conclude())


def test_a_node_whose_disk_returns_other_bytes_computes_its_own_aggregate() -> None:
    cluster = cluster_of(4, rounds=2)
    changed: list[Computed] = []
    shared = SharedAggregates()

    def with_other_bytes(federation: Federation, work: Aggregate, read: Read) -> Computed:
        sound = shared(federation, work, read)
        changed.append(shared(federation, work, lambda digest: bytes(4) + bytes(read(digest))[4:]))
        assert changed[-1] is not sound
        return sound

    cluster._aggregating = with_other_bytes
    cluster.run()

    assert len(changed) == 2 * 4
    assert not cluster.conclude()
