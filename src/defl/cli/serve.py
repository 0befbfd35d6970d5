"""`defl node start`, `status` and `stop`: a node as a process."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import click

from defl.cli.node import node
from defl.errors import UserError
from defl.node.node import PID_FILE, Node, open_node
from defl.node.report.status_client import asked_status, last_status
from defl.node.report.telemetry import Log
from defl.node.setup.config import LogFormat, read_node
from defl.node.store.storage import lock_holder

NAME_COLUMNS = 20
INDENTED = "\n" + " " * (NAME_COLUMNS + 2)  # a traceback stays in its column

START_EXAMPLES = """
Example:

\b
  defl node start alice

Exit code 0: the federation is finished, or the node was asked to stop; 1: the node's own state is
damaged or its disk fails; 2: it cannot start as asked, and what to do.
"""
STOP_EXAMPLES = """
Example:

\b
  defl node stop alice

Exit code 0: asked; 2: no node runs there.
"""


@node.command(epilog=START_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--observer", is_flag=True, help="The state was lost: follow, but sign nothing.")
@click.option("--json", "as_json", is_flag=True, help="Log lines as JSON objects.")
def start(folder: Path, observer: bool, as_json: bool) -> None:
    """Run the node in this terminal until the federation is finished, Ctrl-C or `node stop`.

    It can be killed at any moment and started again: it goes on where it was.
    """
    config = read_node(folder)
    as_json = as_json or config.log_format is LogFormat.JSON
    log = Log(config.name, as_json=as_json, level=config.log_level)
    asyncio.run(_serve(folder, log, observer=observer))


async def _serve(folder: Path, log: Log, *, observer: bool) -> None:
    running: Node = open_node(folder, log, observer=observer)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.stop)
    (folder / PID_FILE).write_text(str(os.getpid()), encoding="ascii")
    try:
        await running.run()
    finally:
        (folder / PID_FILE).unlink(missing_ok=True)


@node.command(epilog="\b\nExample:\n  defl node status alice --json")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def status(folder: Path, as_json: bool) -> None:
    """Round, view, peers, traffic and troubles of the node in DIR.

    Exit code 0: it runs; 1: it does not, and what is shown is its last word.
    """
    config = read_node(folder)
    found = asked_status(folder)
    running = found is not None
    shown = found or last_status(folder)
    if shown is None:
        raise UserError(f"{folder}: this node never ran; start it with: defl node start {folder}")
    if as_json:
        click.echo(json.dumps({"running": running, **shown}, indent=1))
    else:
        click.echo(f"{config.name} {'runs' if running else 'does not run; its last word was:'}")
        for name, value in shown.items():
            click.echo(f"  {name:<{NAME_COLUMNS}}{str(value).replace(chr(10), INDENTED)}")
    sys.exit(0 if running else 1)


@node.command(epilog=STOP_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def stop(folder: Path, as_json: bool) -> None:
    """End the node in DIR cleanly; what it signed and holds stays."""
    number = _running_pid(folder)
    try:
        os.kill(number, signal.SIGTERM)
    except ProcessLookupError:
        raise UserError(f"{folder}: the node has just ended by itself") from None
    except PermissionError:
        raise UserError(f"process {number}: it is another user's; ask that user to stop it") from (
            None
        )
    click.echo(json.dumps({"asked": number}) if as_json else f"asked process {number} to stop")


def _running_pid(folder: Path) -> int:
    """The process of the running node: the pid's file may be of one that was killed, and its number
    a stranger's by now. The lock on the state is held by a living process."""
    holder = lock_holder(folder / read_node(folder).state)
    if holder is None:
        raise UserError(f"{folder}: the node is not running; there is nothing to stop")
    try:
        recorded = (folder / PID_FILE).read_text(encoding="ascii")
    except FileNotFoundError:
        recorded = ""
    if recorded != str(holder):
        raise UserError(
            f"{folder}: the node is not running; process {holder} holds its state, an export or a "
            "node that is just starting. Nothing was stopped"
        )
    return holder
