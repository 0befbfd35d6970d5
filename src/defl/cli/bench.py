"""`defl bench`: the speed of rules, rounds and commits, memory, robustness, and waiting."""

import json
import time
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import click

from defl.aggregation.rules import RULES
from defl.cli.engine_option import engine_option
from defl.clients.prior import Prior
from defl.committee import DEFAULTS, MEMBERS_MIN, Rules, faults_of
from defl.engine.choice import opened
from defl.errors import UserError
from defl.fields import MEMBERS_MAX
from defl.lab.experiments import robustness
from defl.lab.experiments.bench_memory import bench_memory
from defl.lab.experiments.bench_round import bench_commit, bench_round
from defl.lab.experiments.bench_rules import bench_rules
from defl.lab.experiments.bench_waiting import bench_waiting
from defl.lab.experiments.robustness_cell import ROUNDS
from defl.lab.experiments.robustness_sizes import SIDES
from defl.schema import Codec
from defl.sim.presence import ROUNDS_TO_LEARN

# The robustness table's divisions of the data, by the names of the option.
SPLITS = {"iid" if alpha is None else f"{alpha:g}": alpha for alpha in robustness.ALPHAS}

AT_LEAST_1 = click.IntRange(min=1)

PROGRESS_S = 2.0  # between two lines of progress


@click.group()
def bench() -> None:
    """Measure the speed of rules, rounds and commits, memory, robustness and waiting."""


@bench.command()
@click.option("--n", "members", default=10, show_default=True, help="Rows: one per member.")
@click.option("--d", "columns", default=1_000_000, show_default=True, help="Values in each row.")
@click.option("--faults", type=int, help="Byzantine rows to tolerate.  [default: (n - 1) / 3]")
@click.option("--rule", "names", multiple=True, help="Only this rule; may be repeated.")
@click.option("--repeats", default=5, show_default=True, help="Repetitions; the median counts.")
@click.option("--no-rivals", is_flag=True, help="Do not compare with byzfl and flwr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def rules(
    *,
    members: int,
    columns: int,
    faults: int | None,
    names: tuple[str, ...],
    repeats: int,
    no_rivals: bool,
    as_json: bool,
) -> None:
    """Time every rule relative to reading its input once with two threads.

    Also relative to the same rule in byzfl and flwr, if they are installed (extra `bench`).
    All of them alternate in every repetition, after a warm-up that is not counted; a ratio is the
    median of the repetitions' ratios. A library that has taken a minute for a rule drops out.
    "cpu" is the processor time of all threads, which other load on the machine affects less.

    \b
    Example:
      defl bench rules --n 10 --d 10000000 --json
      defl bench rules --rule multi_krum --rule trimmed_mean --no-rivals

    Exit code 0: measured; 2: invalid options.
    """
    result = bench_rules(
        members,
        columns,
        faults_of(members) if faults is None else faults,
        names or [*RULES],
        repeats=repeats,
        rivals=not no_rivals,
        progress=_progress,
    )
    click.echo(json.dumps(asdict(result), indent=1) if as_json else result.table())


@bench.command(name="robustness")
@click.option(
    "--data",
    envvar="DEFL_DATA",
    type=click.Path(path_type=Path, file_okay=False),
    help="Data folder; missing files are downloaded.  [env: DEFL_DATA]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/robustness"),
    show_default=True,
    help="Folder for the results; an interrupted run resumes from it.",
)
@click.option("--rule", "names", multiple=True, help="Only this rule; may be repeated.")
@click.option("--attack", "attacks", multiple=True, help="Only this attack; may be repeated.")
@click.option(
    "--members",
    multiple=True,
    type=click.IntRange(MEMBERS_MIN, MEMBERS_MAX),
    help="Only this n; may be repeated.",
)
@click.option(
    "--dataset",
    type=click.Choice(robustness.DATASETS),
    default=robustness.DATASETS[0],
    show_default=True,
    help="The data set; digits needs no data folder.",
)
@click.option(
    "--split",
    "splits",
    multiple=True,
    type=click.Choice([*SPLITS]),
    help="Only this division of the data: i.i.d. or a Dirichlet alpha; may be repeated.",
)
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    type=click.Choice([codec.value for codec in Codec]),
    help="How updates travel; may be repeated, to compare.  [default: fp32]",
)
@click.option("--seeds", type=AT_LEAST_1, default=1, show_default=True, help="Runs of each cell.")
@click.option(
    "--first-seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Seed of the first run.",
)
@click.option(
    "--rounds", type=AT_LEAST_1, default=ROUNDS, show_default=True, help="Rounds of each run."
)
@click.option(
    "--away",
    type=click.IntRange(min=0),
    default=0,
    help="Rounds for which one honest member is away, from half-way on.  [default: 0]",
)
@click.option(
    "--sizes",
    default="",
    metavar="PATTERN",
    help="Members of different size, for example 1:2:7: rules with and without agreed weights.",
)
@click.option(
    "--attacker",
    "attackers",
    multiple=True,
    type=click.Choice(SIDES),
    help="With --sizes: which members attack; may be repeated.  [default: each in turn]",
)
@click.option(
    "--prior",
    type=click.Choice([prior.value for prior in Prior]),
    default=Prior.CORRECTED.value,
    show_default=True,
    help="Whether clients correct their loss by their own class frequencies.",
)
@engine_option("processes:2", "Cells")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
def robustness_command(
    *,
    data: Path | None,
    out: Path,
    names: tuple[str, ...],
    attacks: tuple[str, ...],
    members: tuple[int, ...],
    dataset: str,
    splits: tuple[str, ...],
    codecs: tuple[str, ...],
    seeds: int,
    first_seed: int,
    rounds: int,
    away: int,
    sizes: str,
    attackers: tuple[str, ...],
    prior: str,
    engine: str,
    as_json: bool,
) -> None:
    """Train a small model under every rule and attack.

    The table is rules x attacks x (i.i.d., alpha = 1, alpha = 0.3) x n = 4, 7, 10, with
    f = (n - 1) / 3 attackers and with none. Writes cells.jsonl while it runs, and at the end
    robustness.csv, robustness.md and a heat map, robustness.svg; with several codecs also
    codecs.md, what each costs beside fp32. goals.md compares the adaptive rule with FedAvg without
    attack and with Multi-Krum under attack, by the mean and the worst seed, and says how often the
    rule left out the worst-off honest member and which goals it misses. An interrupted run resumes.

    With --sizes members have so much of the data, the attackers are the smallest or the largest,
    and sizes.csv and sizes.md show each rule with and without weights, beside FedAvg by size.

    \b
    Example:
      defl bench robustness --data ~/data
      defl bench robustness --data ~/data --rule fed_avg --rule adaptive --attack none --seeds 3
      defl bench robustness --dataset digits --rule adaptive --codec fp32 --codec int8
      defl bench robustness --data ~/data --sizes 1:2:7 --rule fed_avg --rule adaptive

    Exit code 0: the table is written; 1: a cell failed; 2: invalid options.
    """
    cells = robustness.planned(
        names or robustness.RULES,
        attacks or robustness.ATTACKS,
        members or robustness.MEMBERS,
        range(first_seed, first_seed + seeds),
        rounds,
        dataset,
        alphas=[SPLITS[split] for split in splits or SPLITS],
        codecs=[Codec(codec) for codec in codecs or (Codec.FP32,)],
        away=away,
        sizes=sizes,
        attackers=attackers,
        prior=Prior(prior),
    )
    start = time.monotonic()
    last_line = start - PROGRESS_S

    def progress(done: int, total: int) -> None:
        nonlocal last_line
        now = time.monotonic()
        if now - last_line >= PROGRESS_S or done == total:
            last_line = now
            _progress(f"{done} of {total} cells, {now - start:.0f} s")

    with opened(engine) as workers:
        results = robustness.run_table(cells, data, out, engine=workers, progress=progress)
    if as_json:
        accuracy = [{**asdict(cell), "accuracy": results[cell].accuracy} for cell in cells]
        seconds = time.monotonic() - start
        click.echo(json.dumps({"seconds": seconds, "accuracy": accuracy}, indent=1))
    else:
        table = "sizes" if sizes else "robustness"
        click.echo((out / f"{table}.md").read_text(encoding="utf-8"))
        _progress(f"written: {out}/{table}.csv, .md" + ("" if sizes else ", .svg"))


@bench.command(name="round")
@click.option("--nodes", default=4, show_default=True, help="Members: one process each.")
@click.option("--mb", "megabytes", default=28.0, show_default=True, help="Size of the model.")
@click.option("--rounds", default=6, show_default=True, help="Rounds to measure.")
@click.option("--phases", is_flag=True, help="Show where the time of a round goes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def round_(*, nodes: int, megabytes: float, rounds: int, phases: bool, as_json: bool) -> None:
    """Time a round of real nodes outside training, relative to the bare TLS exchange of its bytes.

    Time outside training is the time between two closes less the longest training of the round,
    which the others wait for. "ratio_to_bare_tls" is the key figure. "processor_seconds" are those
    of one node and its two child processes in one round: what counts if each node has a machine of
    its own.

    --phases follows the update that is submitted last, since the round waits for it, and shows the
    processor time that an average node spends in each phase.

    \b
    Example:
      defl bench round --nodes 4 --mb 28 --json
      defl bench round --phases

    Exit code 0: measured; 1: the nodes disagreed or lost something; 2: invalid options.
    """
    _check_sizes(nodes=nodes, rounds=rounds)
    _check_megabytes(megabytes)
    # No further progress: asking the nodes for their status would disturb the measurement.
    _progress(
        f"measuring {rounds} rounds of {megabytes:g} MB on {nodes} nodes, after the bare exchange"
    )
    result = bench_round(nodes, megabytes, rounds, phases=phases)
    _show(result, as_json=as_json)


@bench.command()
@click.option("--nodes", default=4, show_default=True, help="Members: three processes each.")
@click.option("--mb", "megabytes", default=100.0, show_default=True, help="Size of the model.")
@click.option("--rounds", default=3, show_default=True, help="Rounds to run.")
@click.option(
    "--rule",
    type=click.Choice([*RULES]),
    default=DEFAULTS.aggregation,
    show_default=True,
    help="The aggregation rule.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def memory(*, nodes: int, megabytes: float, rounds: int, rule: str, as_json: bool) -> None:
    """Measure the memory of real nodes with a large model, and how long their rounds take.

    "own_peak_mb" is the key figure: the most memory that a node and its two child processes hold
    at one moment. It must not exceed two models and 512 MiB. "mapped_peak_mb" are pages of files
    that they map, which the system drops when memory is short. Linux only.

    A node of four stores 11 models on the disk in two rounds and 20 in four, and a few files more;
    they lie in TMPDIR and are deleted at the end.

    \b
    Example:
      defl bench memory --nodes 4 --mb 1024

    Exit code 0: measured; 1: above the bound, or the nodes disagreed or lost something; 2: invalid
    options.
    """
    _check_sizes(nodes=nodes, rounds=rounds)
    _check_megabytes(megabytes)
    _progress(f"measuring {rounds} rounds of {megabytes:g} MB on {nodes} nodes")
    _show(bench_memory(nodes, megabytes, rounds, rule), as_json=as_json)


@bench.command()
@click.option("--nodes", default=4, show_default=True, help="Members: one process each.")
@click.option("--rounds", default=30, show_default=True, help="Rounds; each commits n UPDs.")
@click.option(
    "--in-flight-mb",
    default=0.0,
    show_default=True,
    help="Measure again while models of this size travel between all members; 0: do not.",
)
@click.option(
    "--rules",
    type=click.Choice([rules.value for rules in Rules]),
    default=Rules.HOTSTUFF.value,
    show_default=True,
    help="Three-chain HotStuff or two-chain Jolteon.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def commit(*, nodes: int, rounds: int, in_flight_mb: float, rules: str, as_json: bool) -> None:
    """Time a transaction from submission to commit, relative to a loopback round trip.

    "processor_seconds" are those of one node and its two child processes in one round.

    \b
    Example:
      defl bench commit --nodes 10 --json
      defl bench commit --nodes 4 --in-flight-mb 100

    Exit code 0: measured; 1: the nodes disagreed or lost something; 2: invalid options.
    """
    _check_sizes(nodes=nodes, rounds=rounds)
    _progress(f"measuring {rounds} rounds on {nodes} nodes")
    _show(bench_commit(nodes, rounds, in_flight_mb, Rules(rules)), as_json=as_json)


@bench.command()
@click.option("--nodes", default=4, show_default=True, help="Members.")
@click.option("--rounds", default=40, show_default=True, help="Rounds of each case.")
@click.option("--seed", default=1, show_default=True, help="Seed of all randomness.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def waiting(*, nodes: int, rounds: int, seed: int, as_json: bool) -> None:
    """Measure how long simulated rounds wait, and for which members.

    One straggler that takes 1.2, 5 or 50 times as long as the others, steady and noisy; then f
    silent members, and f members that promise and do not deliver, relative to the silent ones.

    \b
    Example:
      defl bench waiting --nodes 7 --rounds 40

    Exit code 0: measured; 2: invalid options.
    """
    if nodes < MEMBERS_MIN or rounds <= ROUNDS_TO_LEARN:
        raise UserError(
            f"at least {MEMBERS_MIN} members and {ROUNDS_TO_LEARN + 1} rounds are needed"
        )
    result = bench_waiting(nodes, rounds, seed, _progress)
    click.echo(json.dumps(result, indent=1) if as_json else _waiting_table(result))


def _waiting_table(result: dict[str, Any]) -> str:
    head = f"{'case':<24}{'seconds':>9}{'round 1':>9}{'in rounds':>11}{'x silent':>10}  checks"
    lines = [f"{result['nodes']} members, {result['rounds']} rounds", head]
    for row in result["cases"]:
        times = f"{row['times_silent']:.2f}" if "times_silent" in row else ""
        lines.append(
            f"{row['case']:<24}{row['virtual_s']:>9.1f}{row['first_round_s']:>9.1f}"
            f"{row['least_share']:>11.0%}{times:>10}  {'hold' if row['holds'] else 'BROKEN'}"
        )
    return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _phases_table(rows: list[dict[str, Any]]) -> str:
    kinds = [*rows[0]["processor_seconds"]]
    head = f"{'phase':<24}{'ms':>7}  processor ms per node:"
    lines = [head + "".join(f"{kind:>12}" for kind in kinds)]
    for row in rows:
        used = "".join(f"{1000 * row['processor_seconds'][kind]:>12.0f}" for kind in kinds)
        lines.append(f"{row['phase']:<24}{1000 * row['seconds']:>7.0f}{'':>24}{used}")
    return "\n".join(lines)


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _check_sizes(*, nodes: int, rounds: int) -> None:
    if nodes < MEMBERS_MIN or rounds < 1:
        raise UserError(f"at least {MEMBERS_MIN} nodes and one round are needed")


def _check_megabytes(megabytes: float) -> None:
    if not 0 < megabytes < inf:
        raise UserError(f"mb is the model's size in MB and must be above 0, not {megabytes:g}")


def _show(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result, indent=1))
    else:
        for name, value in result.items():
            if name == "phases":
                click.echo(_phases_table(value))
            else:
                click.echo(f"{name:<30}{_shown(value)}")
    if result["wrong"]:
        raise SystemExit(1)
