"""`defl node start`, `status` and `stop`: a node as a process."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from defl.cli.node import node
from defl.cli.status_text import status_text
from defl.errors import UserError
from defl.node.event_loop import loop_factory
from defl.node.files import PID_FILE, STARTED_FILE, TOKEN_FILE
from defl.node.report.log import Log, configure_logging
from defl.node.report.status_client import last_status, running_status
from defl.node.setup.config import LogFormat, read_node
from defl.node.store.storage import lock_holder
from defl.node.work.orphans import PARENT_VARIABLE

if TYPE_CHECKING:
    from defl.node.node import Node

__all__ = ["node"]

PARENT_EVERY_S = 1.0

START_EXAMPLES = """
Example:

\b
  defl node start alice

Exit code 0: the federation is finished, or the node was stopped; 1: the node's own state is
damaged or its disk fails; 2: it cannot start, and the message says what to do.
"""
STOP_EXAMPLES = """
Example:

\b
  defl node stop alice

Exit code 0: the node is stopping; 2: no node is running there.
"""


@node.command(epilog=START_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--observer", is_flag=True, help="Follow without signing; for a node that lost its state."
)
@click.option("--json", "as_json", is_flag=True, help="Log lines as JSON objects.")
def start(folder: Path, observer: bool, as_json: bool) -> None:
    """Run the node in this terminal until the federation is finished, Ctrl-C or `node stop`.

    It can be killed at any moment and started again: it continues where it was.
    """
    config = read_node(folder)
    as_json = as_json or config.log_format is LogFormat.JSON
    configure_logging(as_json=as_json, level=config.log_level)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(folder, Log(), observer=observer))


async def _serve(folder: Path, log: Log, *, observer: bool) -> None:
    from defl.node.startup import open_node  # noqa: PLC0415 - `status` and `stop` need no node

    running = open_node(folder, log, observer=observer)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.stop)
    (folder / PID_FILE).write_text(str(os.getpid()), encoding="ascii")
    following = asyncio.create_task(_stop_with_parent(running))
    try:
        await running.run()
    finally:
        following.cancel()
        (folder / PID_FILE).unlink(missing_ok=True)


async def _stop_with_parent(running: "Node") -> None:
    """Stop when `defl run`, which started this node, was killed and cannot stop it."""
    parent = os.environ.get(PARENT_VARIABLE)
    while parent is None or os.getppid() == int(parent):
        await asyncio.sleep(PARENT_EVERY_S)
    running.stop()


@node.command(epilog="\b\nExample:\n  defl node status alice --json")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def status(folder: Path, as_json: bool) -> None:
    """Progress, peers, traffic and problems of the node in DIR.

    Exit code 0: it runs; 1: it does not run, and its final status is shown.
    """
    config = read_node(folder)
    current = running_status(folder)
    status = current or last_status(folder)
    if status is None:
        raise UserError(f"{folder}: {_no_status(folder, config.state)}")
    running = current is not None
    if as_json:
        click.echo(json.dumps({"running": running, **msgspec.to_builtins(status)}, indent=1))
    else:
        click.echo(f"{config.name} {_headline(folder, running=running)}")
        click.echo(status_text(status))
    sys.exit(0 if running else 1)


def _headline(folder: Path, *, running: bool) -> str:
    if running:
        return "is running"
    if (folder / TOKEN_FILE).exists():  # deleted on exit
        return "was killed or does not answer; its status at an earlier exit:"
    return "is not running; its final status:"


def _no_status(folder: Path, state: str) -> str:
    if (holder := lock_holder(folder / state)) is not None:
        return f"process {holder} holds the node's state but does not answer yet; ask again"
    start = f"defl node start {folder}"
    if (folder / STARTED_FILE).exists():
        return f"the node was killed and left no final status; start it again with: {start}"
    return f"this node never ran; start it with: {start}"


@node.command(epilog=STOP_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def stop(folder: Path, as_json: bool) -> None:
    """Stop the node in DIR cleanly; its state is kept."""
    number = _running_pid(folder)
    try:
        os.kill(number, signal.SIGTERM)
    except ProcessLookupError:
        raise UserError(f"{folder}: the node has just exited on its own") from None
    except PermissionError:
        belongs = f"process {number} belongs to another user; ask that user to stop it"
        raise UserError(belongs) from None
    click.echo(json.dumps({"asked": number}) if as_json else f"asked process {number} to stop")


def _running_pid(folder: Path) -> int:
    """The process that holds the lock on the state. The pid file alone is no proof: its node may
    have been killed, and another process may have the same pid by now."""
    holder = lock_holder(folder / read_node(folder).state)
    if holder is None:
        raise UserError(f"{folder}: the node is not running; there is nothing to stop")
    try:
        recorded = (folder / PID_FILE).read_text(encoding="ascii")
    except FileNotFoundError:
        recorded = ""
    if recorded != str(holder):
        raise UserError(
            f"{folder}: the node is not running; process {holder} holds its state: an export, or a "
            "node that is just starting. Nothing was stopped"
        )
    return holder
