"""`defl bench`: speed of rules, rounds and commits, harm done by attacks, waiting for members."""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from defl.aggregation.rules import RULES, rule_named
from defl.committee import MEMBERS_MIN, Rules, faults_of
from defl.errors import UserError
from defl.lab.experiments import robustness
from defl.lab.experiments.bench_round import bench_commit, bench_round
from defl.lab.experiments.bench_rules import bench_rules
from defl.lab.experiments.bench_waiting import bench_waiting
from defl.lab.experiments.robustness_cell import ROUNDS
from defl.sim.presence import ROUNDS_TO_LEARN


@click.group()
def bench() -> None:
    """Measure the speed of rules, rounds and commits, robustness under attack, and waiting."""


@bench.command()
@click.option("--n", "members", default=10, show_default=True, help="Rows: one per member.")
@click.option("--d", "columns", default=1_000_000, show_default=True, help="Values in each row.")
@click.option("--faults", type=int, help="Rows that the rules tolerate.  [default: (n - 1) / 3]")
@click.option("--rule", "names", multiple=True, help="Only this rule; may be repeated.")
@click.option("--repeats", default=5, show_default=True, help="Runs of each rule; median counts.")
@click.option("--no-rivals", is_flag=True, help="Leave byzfl and flwr out.")
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
    """Time every rule beside reading its input once with two threads.

    Also beside the same rule in byzfl and flwr, where they are installed (extra `bench`).
    All of them run in turn in every repetition, after a first one that does not count; a ratio is
    the median of the repetitions' ratios. A library that took a minute for a rule runs no more.
    "cpu" is processor time of all threads, which other work on the machine changes less.

    \b
    Example:
      defl bench rules --n 10 --d 10000000 --json
      defl bench rules --rule multi_krum --rule trimmed_mean --no-rivals

    Exit code 0: measured; 2: it cannot be measured as asked, and what to change.
    """
    tolerated = faults_of(members) if faults is None else faults
    if members < 1 or columns < 1 or repeats < 1 or not 0 <= tolerated < members:
        raise UserError("n, d and repeats are at least 1, and faults lies from 0 to n - 1")
    for name in names:
        rule_named(name)
    result = bench_rules(
        members,
        columns,
        tolerated,
        list(names or RULES),
        repeats=repeats,
        rivals=not no_rivals,
        progress=lambda line: click.echo(line, err=True),
    )
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    click.echo(rules_table(result))


def rules_table(result: dict[str, object]) -> str:
    def pair(times: dict[str, object], name: str) -> str:
        wall, cpu = times[name], times[f"cpu_{name}"]
        return "-" if wall is None else f"{wall:.3g} ({cpu:.3g})"

    head = f"{'rule':28}{'seconds':>18}{'x read':>16}{'byzfl / ours':>16}{'flwr / ours':>16}"
    title = (
        f"n = {result['n']}, d = {result['d']}, faults_max = {result['faults_max']}, "
        f"{result['loops']} loops; reading once: {result['read_seconds']:.4f} s; "
        "in brackets: processor time"
    )
    lines = [title, head]
    times = result["rules"]
    if not isinstance(times, dict):
        raise TypeError("rules is a table")
    for name, time_ in times.items():
        lines.append(
            f"{name:28}{pair(time_, 'seconds'):>18}{pair(time_, 'ratio_to_read'):>16}"
            f"{pair(time_, 'ratio_to_byzfl'):>16}{pair(time_, 'ratio_to_flwr'):>16}"
        )
    if result["skipped"]:
        skipped = result["skipped"]
        lines.append(f"not compared, because not installed, not importable or left out: {skipped}")
    return "\n".join(lines)


@bench.command(name="robustness")
@click.option(
    "--data",
    envvar="DEFL_DATA",
    type=click.Path(path_type=Path, file_okay=False),
    help="Data folder; what it lacks is downloaded.  [env: DEFL_DATA]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/robustness"),
    show_default=True,
    help="Where results go; a stopped run goes on from what is there.",
)
@click.option("--rule", "names", multiple=True, help="Only this rule; may be repeated.")
@click.option("--attack", "attacks", multiple=True, help="Only this attack; may be repeated.")
@click.option("--members", multiple=True, type=int, help="Only this n; may be repeated.")
@click.option(
    "--dataset",
    type=click.Choice(robustness.DATASETS),
    default=robustness.DATASETS[0],
    show_default=True,
    help="What is learnt; digits needs no data folder.",
)
@click.option("--seeds", default=1, show_default=True, help="Runs of each cell.")
@click.option("--first-seed", default=1, show_default=True, help="Seed of the first run.")
@click.option("--rounds", default=ROUNDS, show_default=True, help="Rounds of each run.")
@click.option("--processes", default=2, show_default=True, help="Cells run at a time.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
def robustness_command(
    *,
    data: Path | None,
    out: Path,
    names: tuple[str, ...],
    attacks: tuple[str, ...],
    members: tuple[int, ...],
    dataset: str,
    seeds: int,
    first_seed: int,
    rounds: int,
    processes: int,
    as_json: bool,
) -> None:
    """Train a small model under every rule and attack.

    The table is rules x attacks x (i.i.d., alpha = 1, alpha = 0.3) x n = 4, 7, 10, with
    f = (n - 1) / 3 attackers and with none. Writes cells.jsonl while it runs, and at the end
    robustness.csv, robustness.md and a heat map, robustness.svg. Stop it when you like: started
    again, it goes on where it was.

    \b
    Example:
      defl bench robustness --data ~/data
      defl bench robustness --data ~/data --rule fed_avg --rule adaptive --attack none --seeds 3

    Exit code 0: the table is written; 2: it cannot be made as asked, and what to change.
    """
    for name in names:
        rule_named(name)
    unknown = [name for name in attacks if name not in robustness.ATTACKS]
    if unknown:
        raise UserError(f"no attack {unknown[0]!r}; there are: {', '.join(robustness.ATTACKS)}")
    cells = robustness.planned(
        names or robustness.RULES,
        attacks or robustness.ATTACKS,
        members or robustness.MEMBERS,
        range(first_seed, first_seed + seeds),
        rounds,
        dataset,
    )
    start = time.monotonic()
    last = [start - 10]

    def progress(done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] >= 2 or done == total:
            last[0] = now
            click.echo(f"{done} of {total} cells, {now - start:.0f} s", err=True)

    results = robustness.run_table(cells, data, out, processes=processes, progress=progress)
    if as_json:
        picked = [{**asdict(cell), "accuracy": results[cell].accuracy} for cell in cells]
        click.echo(json.dumps({"seconds": time.monotonic() - start, "accuracy": picked}, indent=1))
    else:
        click.echo((out / "robustness.md").read_text(encoding="utf-8"))
        click.echo(f"written: {os.fspath(out)}/robustness.csv, .md, .svg", err=True)


@bench.command(name="round")
@click.option("--nodes", default=4, show_default=True, help="Members: one process each.")
@click.option("--mb", "megabytes", default=28.0, show_default=True, help="Size of the model.")
@click.option("--rounds", default=6, show_default=True, help="Rounds that are measured.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def round_(*, nodes: int, megabytes: float, rounds: int, as_json: bool) -> None:
    """Time a round of real nodes outside training, beside the bare TLS exchange of its bytes.

    Outside training is the time from close to close less the longest training of the round:
    the others wait for it. "ratio_to_bare_tls" is the figure.

    \b
    Example:
      defl bench round --nodes 4 --mb 28 --json

    Exit code 0: measured; 1: measured, but the nodes disagreed or lost something; 2: wrong options.
    """
    _at_least(nodes=nodes, rounds=rounds)
    if megabytes <= 0:
        raise UserError(f"mb is the model's size in MB, more than 0, not {megabytes}")
    _begun(f"{rounds} rounds of {megabytes:g} MB on {nodes} nodes, and the bare exchange before")
    _tell(bench_round(nodes, megabytes, rounds), as_json=as_json)


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
    """Time a transaction from submission to commit on real nodes, beside a loopback round trip.

    \b
    Example:
      defl bench commit --nodes 10 --json
      defl bench commit --nodes 4 --in-flight-mb 100

    Exit code 0: measured; 1: measured, but the nodes disagreed or lost something; 2: wrong options.
    """
    _at_least(nodes=nodes, rounds=rounds)
    _begun(f"{rounds} rounds on {nodes} nodes")
    _tell(bench_commit(nodes, rounds, in_flight_mb, Rules(rules)), as_json=as_json)


def _begun(what: str) -> None:
    """No more than this: asking the nodes how far they are would disturb what is measured."""
    click.echo(f"measuring {what} ...", err=True)


def _at_least(*, nodes: int, rounds: int) -> None:
    if nodes < 4 or rounds < 1:
        raise UserError("a federation has at least 4 nodes and one round")


def _tell(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result, indent=1))
    else:
        for name, value in result.items():
            shown = f"{value:.4g}" if isinstance(value, float) else value
            click.echo(f"{name:<30}{shown}")
    if result["wrong"]:
        raise SystemExit(1)


@bench.command()
@click.option("--nodes", default=4, show_default=True, help="Members.")
@click.option("--rounds", default=40, show_default=True, help="Rounds of each case.")
@click.option("--seed", default=1, show_default=True, help="All chance comes from it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def waiting(*, nodes: int, rounds: int, seed: int, as_json: bool) -> None:
    """For whom simulated rounds wait, and how long.

    One member that needs 1.2, 5 or 50 times as long as the others, steady and noisy; then f silent
    members, and f members that promise and do not deliver, compared with the silent ones.

    \b
    Example:
      defl bench waiting --nodes 7 --rounds 40

    Exit code 0: measured; 2: it cannot be measured as asked, and what to change.
    """
    if nodes < MEMBERS_MIN or rounds <= ROUNDS_TO_LEARN:
        raise UserError(
            f"at least {MEMBERS_MIN} members and {ROUNDS_TO_LEARN + 1} rounds are needed"
        )
    result = bench_waiting(nodes, rounds, seed, lambda line: click.echo(line, err=True))
    click.echo(json.dumps(result, indent=1) if as_json else waiting_table(result))


def waiting_table(result: dict[str, Any]) -> str:
    head = f"{'case':<24}{'seconds':>9}{'round 1':>9}{'in rounds':>11}{'x silent':>10}  checks"
    lines = [f"{result['nodes']} members, {result['rounds']} rounds", head]
    for row in result["cases"]:
        times = f"{row['times_silent']:.2f}" if "times_silent" in row else ""
        lines.append(
            f"{row['case']:<24}{row['virtual_s']:>9.1f}{row['first_round_s']:>9.1f}"
            f"{row['least_share']:>11.0%}{times:>10}  {'hold' if row['holds'] else 'BROKEN'}"
        )
    return "\n".join(lines)
