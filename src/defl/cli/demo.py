"""`defl demo`: real nodes on this machine with an attacker among them, and the outcome."""

import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from defl.cli.dashboard_beside import dashboard_beside
from defl.cli.demo_view import live_view, megabytes, percent
from defl.cli.exit_codes import ExitCode
from defl.cli.run import signals_interrupt
from defl.fields import NUMBER_MAX
from defl.lab.attacks.attacks import ATTACKS
from defl.lab.experiments.demo import ATTACK, VICTIM, WITNESS, Demo, DemoPlan, name_of
from defl.lab.experiments.demo_plot import Draw, drawing
from defl.results import Result
from defl.running import RunInterrupted

EXAMPLES = """
Examples:

\b
  defl demo                                7 nodes, one lies, one is killed
  defl demo --attack same_value --json     another attack, one JSON object
  defl demo --nodes 4 --rounds 6
  defl demo --dashboard                    prints the address of a web page about it
  defl demo --plot accuracy.png            also draw accuracy by round

Nothing else is needed. With rich installed a terminal shows a live table instead of lines; --plot
needs matplotlib.

Exit code 0: all rounds closed and all honest nodes hold the same model; 1: they did not; 2: it
cannot be run as asked, and the message says what to do; 130: interrupted.
"""


@click.command(epilog=EXAMPLES)
@click.option("--nodes", default=7, show_default=True, help="Members; the last one attacks.")
@click.option("--rounds", default=10, show_default=True, help="Rounds of learning, at least 4.")
@click.option(
    "--attack",
    type=click.Choice([*ATTACKS]),
    default=ATTACK,
    show_default=True,
    help="What the last node does to its updates.",
)
@click.option(
    "--seed",
    default=1,
    show_default=True,
    type=click.IntRange(0, NUMBER_MAX),
    help="Seed of data, weights and batches.",
)
@click.option("--out", type=click.Path(path_type=Path), help="A new folder for the nodes' folders.")
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw accuracy by round (.png, .svg)."
)
@click.option(
    "--dashboard", is_flag=True, help="Show it as a web page; in a terminal until Ctrl-C."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object at the end instead of text.")
def demo(
    nodes: int,
    rounds: int,
    attack: str,
    seed: int,
    out: Path | None,
    plot: Path | None,
    dashboard: bool,
    as_json: bool,
) -> None:
    """Train on handwritten digits with an attacker among real nodes on this machine.

    Every node is a process with its own key, disk and TLS connections. The last one's client
    poisons each update; another node is killed with SIGKILL half-way and started again. FedAvg with
    the same clients, data and seed runs beside it in one loop, with the attack and without.
    """
    plan = DemoPlan(nodes, rounds, attack, seed)
    draw = _drawing(plot)
    started = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(signals_interrupt())
        project = stack.enter_context(tempfile.TemporaryDirectory(prefix="defl-digits-"))
        course = Demo(plan, Path(project))
        click.echo(f"{name_of(plan.attacker)} attacks: {plan.attack_in_words}", err=as_json)
        attacked = course.by_server(attacked=True)
        alone = course.by_server(attacked=False)
        beside = stack.enter_context(dashboard_beside(wanted=dashboard, err=as_json))
        with live_view(err=as_json) as view:
            try:
                result = course.run(beside.watching(view), out)
            except RunInterrupted as interrupted:
                _forget(interrupted.result, keep=out is not None)
                raise
        accuracy = course.accuracy_of(result)
        report = _report(plan, result, accuracy, attacked, alone, time.monotonic() - started)
        if draw is not None:
            draw(attacked, report["accuracy_by_round"]["defl_attacked"], alone)
            click.echo(f"wrote {plot}", err=as_json)
        click.echo(json.dumps(report, indent=1) if as_json else _text(plan, report))
        beside.stay()
    sys.exit(ExitCode.DONE if result.agreed and result.complete else ExitCode.FAILED)


def _forget(result: Result, *, keep: bool) -> None:
    """Delete the run: its data is already deleted, so it cannot be resumed."""
    if not keep:
        shutil.rmtree(result.folder, ignore_errors=True)
    click.echo(
        f"interrupted after {len(result.rounds)} of {result.rounds_planned} rounds", err=True
    )


def _drawing(plot: Path | None) -> Draw | None:
    """The plot function; None without matplotlib, and the demonstration still runs."""
    draw = None if plot is None else drawing(plot)
    if plot is not None and draw is None:
        click.echo(
            f"{plot} will not be drawn: matplotlib is not installed; get it with: "
            "pip install matplotlib",
            err=True,
        )
    return draw


def _report(
    plan: DemoPlan,
    result: Result,
    accuracy: float | None,
    attacked: tuple[float, ...],
    alone: tuple[float, ...],
    seconds: float,
) -> dict[str, Any]:
    honest = [name for name in result.members if name not in result.byzantine]
    traffic = [result.traffic[name] for name in honest]
    evaluated = "accuracy" in result.metric_names
    return {
        "nodes": plan.nodes,
        "rounds": plan.rounds,
        "rounds_closed": len(result.rounds),
        "attack": plan.attack,
        "attacker": name_of(plan.attacker),
        "killed": name_of(VICTIM),
        "accuracy": {
            "fedavg_attacked": attacked[-1],
            "defl_attacked": accuracy,
            "no_attack": alone[-1],
        },
        "accuracy_by_round": {
            "fedavg_attacked": dict(enumerate(attacked, 1)),
            "defl_attacked": result.series("accuracy", name_of(WITNESS)) if evaluated else {},
            "no_attack": dict(enumerate(alone, 1)),
        },
        "digests_equal": result.agreed,
        "digests": {name: result.digests[name] for name in honest},
        "left_out": {
            record.number: {
                omission.member: ", ".join(filter(None, (omission.reason, omission.detail)))
                for omission in record.omissions
            }
            for record in result.rounds
        },
        "commit_ms": result.commit_ms.get(name_of(WITNESS), {}),
        "bytes_sent": max(member.sent_bytes for member in traffic),
        "bytes_received": max(member.received_bytes for member in traffic),
        "disk_bytes": max(result.disk_bytes[name] for name in honest),
        "folder": str(result.folder),
        "wall_s": round(seconds, 2),
    }


def _text(plan: DemoPlan, report: dict[str, Any]) -> str:
    accuracy, attacker, folder = report["accuracy"], report["attacker"], report["folder"]
    digest = next(iter(report["digests"].values()))
    same = f"the same at all {len(report['digests'])} honest nodes"
    counts: dict[str, int] = {}
    for nodes in report["left_out"].values():
        for node in nodes:
            counts[node] = counts.get(node, 0) + 1
    left_out = ", ".join(f"{node} in {count}" for node, count in sorted(counts.items()))
    return "\n".join(
        [
            "",
            f"accuracy on test images after round {plan.rounds}",
            (
                f"  FedAvg, {attacker} attacks     {percent(accuracy['fedavg_attacked']):>7}"
                "   a server's loop in this process"
            ),
            (
                f"  DeFL, {attacker} attacks       {percent(accuracy['defl_attacked']):>7}"
                f"   {plan.nodes} real nodes, {report['killed']} killed half-way"
            ),
            (
                f"  FedAvg, no attack          {percent(accuracy['no_attack']):>7}"
                "   a server's loop; same data and seed"
            ),
            "",
            f"rounds    {report['rounds_closed']} of {plan.rounds} closed",
            f"model     {digest}",
            f"          {same if report['digests_equal'] else 'THE DIGESTS DIFFER'}",
            f"left out  {f'{left_out} of {plan.rounds} rounds' if left_out else 'none'}",
            (
                f"commit    {report['commit_ms'].get('p50', 0):.0f} ms (median), "
                f"{report['commit_ms'].get('p99', 0):.0f} ms (p99)"
            ),
            (
                f"per node  sent {megabytes(report['bytes_sent'])}, received "
                f"{megabytes(report['bytes_received'])}, stored {megabytes(report['disk_bytes'])}"
            ),
            f"took      {report['wall_s']:.0f} s",
            "",
            "next",
            f"  defl verify {folder}/node-0/proven.safetensors \\",
            f"      {folder}/node-0/round-certificate.json {folder}/federation.toml",
            f"  defl export {folder}/node-0 digits.npz",
            f"  defl dashboard {folder}",
            "  defl demo --attack same_value",
            "  defl new my-project && defl run my-project",
        ]
    )
