"""`defl run`: a whole federation on this machine, one process per node."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click
from msgspec import to_builtins

from defl.aggregation.rules import RULES
from defl.cli.dashboard_beside import dashboard_beside
from defl.cli.exit_codes import ExitCode
from defl.committee import DEFAULTS
from defl.errors import UserError
from defl.node.report.status_client import last_status
from defl.node.report.tracking import Track
from defl.node.setup.assemble import weights_by_name
from defl.printable import printable_lines
from defl.results import Result
from defl.running import RunFailed, RunInterrupted, RunProgress
from defl.running import run as run_federation

EXAMPLES = """
Examples:

\b
  defl run my-project                      4 nodes, as many rounds as defl.toml says
  defl run my-project --nodes 7 --rounds 3 --json
  defl run my-project --out runs/1         keep everything; the same command resumes it
  defl run my-project --attack node-3=sign_flip --kill node-1@2
  defl run --flower my-flower-app --run-config 'lr=0.1'
  defl run my-project --dashboard          prints the address of a web page about it
  defl run my-project --track tensorboard  figures in each node's folder, under tracking/

PROJECT is a folder with your training code. Its defl.toml may contain:

\b
  client = "task:client"    # module:attribute, see defl/clients/protocol.py
  nodes = 4
  rounds = 10
  steps = 20                # for your code: how much each member trains in a round
  weights = {node-0 = 18}   # as --weight, which replaces all of them
  work_time_max_s = 3600.0  # a training that takes longer is stopped
  keep_best = "accuracy"    # each node keeps its best round's model too; "-loss": the lowest
  gst_lt_min_s = 1.0        # a round waits for slow members at least this long ...
  gst_lt_max_s = 3600.0     # ... and at most this long

Without one, the client is client:client. Each node's process finds its number in DEFL_NODE and the
number of nodes in DEFL_NODES, so that your code can give each its own part of the data. A Flower
project runs unmodified, see docs/FLOWER.md.

Without --out the nodes' folders are created in the temporary directory. After a successful run
their keys and state are deleted. Models, certificates and logs stay;
`defl clean` deletes them.

Exit code 0: all rounds closed and all nodes hold the same model; 1: they did not; 2: it cannot be
run as asked, and the message says what to do; 130: interrupted.
"""


@click.command(epilog=EXAMPLES)
@click.argument("project", required=False, type=click.Path(path_type=Path))
@click.option("--flower", type=click.Path(path_type=Path), help="A Flower project, unmodified.")
@click.option("--run-config", default="", help="Flower: 'key=1 other=\"text\"', or a TOML file.")
@click.option("--node-config", default="", help="Flower: the same, for every node.")
@click.option("--nodes", type=int, help="Members, 4 to 100; default 4 or as defl.toml says.")
@click.option("--rounds", type=int, help="Rounds; default 10 or as defl.toml says.")
@click.option("--gst-lt-min-s", type=float, help="Shortest wait of a round for slow members.")
@click.option("--gst-lt-max-s", type=float, help="Longest wait of a round for slow members.")
@click.option(
    "--aggregation",
    type=click.Choice([*RULES]),
    default=DEFAULTS.aggregation,
    show_default=True,
    help="How updates become a model.",
)
@click.option(
    "--weight",
    "weights",
    metavar="MEMBER=N",
    multiple=True,
    help="How much this member counts in the mean, e.g. node-0=18; default 1. May be repeated.",
)
@click.option(
    "--attack",
    "attacks",
    metavar="MEMBER=NAME",
    multiple=True,
    help="This member's client poisons its updates, e.g. node-3=sign_flip. May be repeated.",
)
@click.option(
    "--kill",
    "kills",
    metavar="MEMBER@ROUND",
    multiple=True,
    help="Kill this node in a round and start it again when the round has closed. May be repeated.",
)
@click.option(
    "--track",
    type=click.Choice([track.value for track in Track]),
    default=Track.NONE.value,
    show_default=True,
    help="An experiment tracker for figures of each round.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="A folder for the nodes' folders. If it holds a run that was cut short, resume it.",
)
@click.option("--keep", is_flag=True, help="Without --out: keep keys and state too.")
@click.option("--dashboard", is_flag=True, help="Show it as a web page while it runs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def run(
    project: Path | None,
    weights: tuple[str, ...],
    attacks: tuple[str, ...],
    kills: tuple[str, ...],
    dashboard: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Run a whole federation on this machine: real processes, TLS and disks.

    Ctrl-C stops all nodes cleanly.
    """
    error: str | None = None
    code = ExitCode.DONE
    with signals_interrupt():
        try:
            show = partial(echo_lines, err=as_json)
            with dashboard_beside(wanted=dashboard, err=as_json) as beside:
                result = run_federation(
                    project,
                    weights=weights_by_name(weights),
                    attacks=_attacks(attacks),
                    kills=_kills(kills),
                    progress=False,
                    watch=beside.watching(show),
                    **settings,
                )
            code = ExitCode.DONE if result.complete and result.agreed else ExitCode.FAILED
        except RunInterrupted as interrupted:
            result, code = interrupted.result, ExitCode.INTERRUPTED
        except RunFailed as failed:
            result, code, error = failed.result, ExitCode.FAILED, str(failed)
        except KeyboardInterrupt:
            click.echo("interrupted: no node is running", err=True)
            sys.exit(ExitCode.INTERRUPTED)
    click.echo(json.dumps(_report(result), indent=1) if as_json else _text(result))
    if dashboard and not as_json and result.rounds:
        click.echo(f"to look    defl dashboard {result.folder}")
    if error is not None:
        click.echo(f"Error: {printable_lines(str(error))}", err=True)
    sys.exit(code)


def _attacks(options: tuple[str, ...]) -> dict[str, str]:
    pairs = [option.partition("=") for option in options]
    if not all(member and attack for member, _, attack in pairs):
        raise UserError("--attack is written MEMBER=NAME, for example node-3=sign_flip")
    return {member: attack for member, _, attack in pairs}


def _kills(options: tuple[str, ...]) -> dict[str, int]:
    pairs = [option.partition("@") for option in options]
    if not all(member and number.isdigit() for member, _, number in pairs):
        raise UserError("--kill is written MEMBER@ROUND, for example node-1@2")
    return {member: int(number) for member, _, number in pairs}


def echo_lines(progress: RunProgress, *, err: bool) -> None:
    """Print the lines, to standard error if standard output is JSON."""
    for line in progress.lines:
        click.echo(printable_lines(line), err=err)


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """SIGTERM, or closing the terminal, stops the nodes as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(result: Result) -> dict[str, Any]:
    """The Result, and each member's figures from its final status."""
    statuses = {
        name: to_builtins(last_status(result.folder / name)) or {} for name in result.members
    }

    def of_all(field: str, default: object) -> dict[str, Any]:
        return {name: status.get(field, default) for name, status in statuses.items()}

    return {
        **result.as_json(),
        "rounds_closed": len(result.rounds),
        "digests_equal": result.agreed,
        "commit_ms": {name: held or {} for name, held in of_all("commit_ms", {}).items()},
        "traffic": of_all("traffic", {}),
        "evaluation": of_all("evaluation", None),
        "left_out": of_all("left_out", {}),
        "aggregation": of_all("aggregation", None),
        "worker_error": of_all("worker_error", None),
        "wall_s": round(result.seconds, 3),
    }


def _text(result: Result) -> str:
    first = result.folder / result.members[0]
    if not result.rounds:
        ended = "interrupted" if result.interrupted else "ended"
        return f"{ended} before round 1 closed: there is no model"
    lines = ["", str(result), "", f"model      {first / 'model.safetensors'}"]
    lines.append(f"to use it  defl export {first} model.npz")
    if not result.complete:
        lines.append(f"to resume  the same command with --out {result.folder}")
    return "\n".join(lines)
