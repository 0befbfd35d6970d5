"""`defl run`: a whole federation on this machine, one process per node."""

import json
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import click

from defl.aggregation.rules import DEFAULT, RULES
from defl.cli import flower as flower_project
from defl.cli.progress import RunProgress, in_one_line
from defl.committee import Timing
from defl.errors import UserError
from defl.node.report.status_client import last_status
from defl.node.report.tracking import Track, how_to_install, installed
from defl.node.setup.config import WORK_TIME_MAX_S
from defl.node.setup.local import Local, founding_folder, make_local
from defl.node.setup.processes import Processes

EXAMPLES = """
Examples:

\b
  defl run my-project                      4 nodes, as many rounds as defl.toml says
  defl run my-project --nodes 7 --rounds 3 --json
  defl run --flower my-flower-app --run-config 'lr=0.1'
  defl run my-project --track tensorboard  figures in each node's folder, under tracking/

PROJECT is a folder with your training code. Its defl.toml may say:

\b
  client = "task:client"    # module:attribute, see defl/clients/protocol.py
  nodes = 4
  rounds = 10
  work_time_max_s = 3600.0  # a training that takes longer is ended
  keep_best = "accuracy"    # each node keeps its best round's model too; "-loss": the lowest
  gst_lt_min_s = 1.0        # a round waits for slow members at least this long ...
  gst_lt_max_s = 3600.0     # ... and at most this long

Without one, the client is client:client. Each node's process finds its number in DEFL_NODE and the
count in DEFL_NODES, so that your code can give each its own part of the data. A Flower project is
run as it is, see docs/FLOWER.md.

Exit code 0: all rounds closed and all nodes hold the same model; 1: not so; 2: it cannot be run as
asked, and the message says what to do; 130: interrupted.
"""
POLL_S = 0.1
GRACE_S = 10.0
DEFAULT_ROUNDS = 10
SETTINGS = {
    "client": str,
    "nodes": int,
    "rounds": int,
    "work_time_max_s": float,
    "keep_best": str,
    "gst_lt_min_s": float,
    "gst_lt_max_s": float,
}
# A node whose training failed so often in a row will not mend itself.
TRAINING_FAILURES_MAX = 3


def _settings(project: Path) -> dict[str, Any]:
    path = project / "defl.toml"
    if not project.is_dir():
        raise UserError(f"{project}: no such folder; name the one that holds your training code")
    if not path.exists():
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from error
    for key, value in found.items():
        if key not in SETTINGS:
            raise UserError(
                f"{path}: no setting is named {key!r}; there are: {', '.join(SETTINGS)}"
            )
        if type(value) is not SETTINGS[key]:
            raise UserError(f"{path}: {key} must be of type {SETTINGS[key].__name__}")
    return found


def timing_of(settings: dict[str, Any], min_s: float | None, max_s: float | None) -> Timing:
    usual = Timing()
    return Timing(
        gst_lt_min_s=settings.get("gst_lt_min_s", usual.gst_lt_min_s) if min_s is None else min_s,
        gst_lt_max_s=settings.get("gst_lt_max_s", usual.gst_lt_max_s) if max_s is None else max_s,
        grace_s=GRACE_S,
    )


@click.command(epilog=EXAMPLES)
@click.argument("project", required=False, type=click.Path(path_type=Path))
@click.option("--flower", type=click.Path(path_type=Path), help="A Flower project, unmodified.")
@click.option("--run-config", default="", help="Flower: 'key=1 other=\"text\"', or a TOML file.")
@click.option("--node-config", default="", help="Flower: likewise, for every node.")
@click.option("--nodes", type=int, help="Members, 4 to 100; default 4 or as defl.toml says.")
@click.option("--rounds", type=int, help="Rounds; default 10 or as defl.toml says.")
@click.option("--gst-lt-min-s", type=float, help="Shortest wait of a round for slow members.")
@click.option("--gst-lt-max-s", type=float, help="Longest wait of a round for slow members.")
@click.option(
    "--aggregation",
    type=click.Choice([*RULES]),
    default=DEFAULT,
    show_default=True,
    help="How updates become a model.",
)
@click.option(
    "--track",
    type=click.Choice([track.value for track in Track]),
    default=Track.NONE.value,
    show_default=True,
    help="An experiment tracker for figures of each round.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Where the nodes' folders are made.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object at the end instead of text.")
def run(
    project: Path | None,
    flower: Path | None,
    run_config: str,
    node_config: str,
    nodes: int | None,
    rounds: int | None,
    gst_lt_min_s: float | None,
    gst_lt_max_s: float | None,
    aggregation: str,
    track: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a whole federation on this machine: real processes, TLS and disks.

    Every node's log and model stay in its folder. Ctrl-C ends all of them cleanly.
    """
    started = time.monotonic()
    if project is not None and flower is None and not (run_config or node_config):
        settings = _settings(project)
    elif flower is not None and project is None:
        project, settings = flower, {"client": flower_project.CLIENT}
    else:
        raise UserError("name one project: defl run PROJECT, or defl run --flower PROJECT")
    if not installed(Track(track)):
        raise UserError(how_to_install(Track(track)))
    count = settings.get("nodes", 4) if nodes is None else nodes
    client = settings.get("client", "client:client")
    with founding_folder(out) as folder:
        if flower is not None:
            prepared = flower_project.prepare(
                flower,
                folder,
                count,
                run_config=run_config,
                node_config=node_config,
                aggregation=aggregation,
            )
            settings["rounds"] = prepared.rounds or DEFAULT_ROUNDS
            click.echo(prepared.notes, err=as_json)
        wanted = settings.get("rounds", DEFAULT_ROUNDS) if rounds is None else rounds
        local = make_local(
            folder,
            project,
            client,
            count,
            wanted,
            timing=timing_of(settings, gst_lt_min_s, gst_lt_max_s),
            aggregation=aggregation,
            work_time_max_s=settings.get("work_time_max_s", WORK_TIME_MAX_S),
            track=Track(track),
            keep_best=settings.get("keep_best", ""),
        )
    if not as_json:
        click.echo(f"{count} nodes in {folder}, loading the training code ...")
    processes = Processes(local)
    lost: list[str] = []
    try:
        processes.start()
        lost = _follow(processes, wanted, quiet=as_json)
    except KeyboardInterrupt:
        click.echo("\nstopping all nodes", err=True)
    finally:
        processes.stop()
    report = _report(local, started)
    click.echo(json.dumps(report, indent=1) if as_json else _text(report))
    if lost:
        click.echo(
            f"Error: training fails again and again at {', '.join(lost)}, and without them no "
            f"round can close. {lost[0]} says:\n{report['worker_error'][lost[0]]}",
            err=True,
        )
    sys.exit(0 if report["digests_equal"] and report["rounds_closed"] == wanted else 1)


def _follow(processes: Processes, rounds: int, *, quiet: bool) -> list[str]:
    """Until every node has ended by itself, or too few can train for a round to close: then the
    names of those that cannot. Lines for what happens."""
    progress = RunProgress(rounds, (lambda _: None) if quiet else click.echo)
    running = True
    while running:
        time.sleep(POLL_S)
        running = processes.any_running
        states = {processes.local.nodes[m].name: processes.status(m) for m in processes.members}
        progress.update(states)
        processes.require_no_failure()
        lost = [
            name
            for name, state in states.items()
            if state.get("training_failures", 0) >= TRAINING_FAILURES_MAX
        ]
        if len(lost) > (len(states) - 1) // 3:
            return lost
    return []


def _report(local: Local, started: float) -> dict[str, Any]:
    states = {node.name: last_status(node) for node in local.nodes}
    digests = {name: state["model"] if state else None for name, state in states.items()}
    return {
        "folder": str(local.folder),
        "rounds_closed": min((state["round"] if state else 0) for state in states.values()),
        "digests": digests,
        "digests_equal": len(set(digests.values())) == 1 and None not in digests.values(),
        "commit_ms": {name: state["commit_ms"] if state else {} for name, state in states.items()},
        "traffic": {name: state["traffic"] if state else {} for name, state in states.items()},
        "evaluation": {
            name: state["evaluation"] if state else None for name, state in states.items()
        },
        "left_out": {name: state["left_out"] if state else {} for name, state in states.items()},
        "aggregation": {
            name: state["aggregation"] if state else None for name, state in states.items()
        },
        "worker_error": {
            name: state["worker_error"] if state else None for name, state in states.items()
        },
        "wall_s": round(time.monotonic() - started, 3),
    }


def _text(report: dict[str, Any]) -> str:
    same = "all nodes hold the same model" if report["digests_equal"] else "THE MODELS DIFFER"
    digest = next(iter(report["digests"].values())) or "none"
    lines = [
        f"{report['rounds_closed']} rounds in {report['wall_s']:.1f} s; {same}",
        f"  {digest}",
        f"  {report['folder']}/node-0/model.safetensors",
        f"to use it: defl export {report['folder']}/node-0 model.npz",
    ]
    for name, error in report["worker_error"].items():
        if error is not None:
            lines.append(f"  {name}'s client failed at least once, last: {in_one_line(error)}")
            lines.append(f"    all of it: {report['folder']}/{name}/node.log")
    return "\n".join(lines)
