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
from msgspec.structs import asdict

from defl.cli.node import node
from defl.cli.status_text import health_text, status_text
from defl.errors import UserError
from defl.node.event_loop import loop_factory
from defl.node.files import PID_FILE, TOKEN_FILE
from defl.node.report.health import health_of
from defl.node.report.last_seen import health_by_files, read_history
from defl.node.report.log import Log, configure_logging
from defl.node.report.service_manager import ServiceManager
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
damaged, its disk fails, or it has heard of nobody for three days; 2: it cannot start, or another
process has its key, and the message says what to do.
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
    manager = ServiceManager.take_from(os.environ, os.getpid())
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(folder, Log(), manager, observer=observer))


async def _serve(folder: Path, log: Log, manager: ServiceManager, *, observer: bool) -> None:
    from defl.node.startup import open_node  # noqa: PLC0415 - `status` and `stop` need no node

    running = open_node(folder, log, observer=observer)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, running, manager)
    (folder / PID_FILE).write_text(str(os.getpid()), encoding="ascii")
    started = asyncio.Event()
    beside = [
        asyncio.create_task(_stop_with_parent(running)),
        asyncio.create_task(_inform(manager, running, started)),
    ]
    try:
        await running.run(on_started=started.set)
    finally:
        for task in beside:
            task.cancel()
        (folder / PID_FILE).unlink(missing_ok=True)


def _stop(running: "Node", manager: ServiceManager) -> None:
    manager.stopping()
    running.stop()


async def _inform(manager: ServiceManager, running: "Node", started: asyncio.Event) -> None:
    from defl.node.report.status import status_of  # noqa: PLC0415 - `status` and `stop` need none

    await started.wait()
    manager.ready()
    await manager.keep_informed(lambda: health_of(status_of(running)).sentence)


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
    """Health in one sentence, then progress, peers, traffic and problems of the node in DIR.

    Exit code 0: it runs; 1: it does not run, and its final status is shown, if it left one; 2: DIR
    holds no node, or its process does not answer yet, and the message says what to do.
    """
    config = read_node(folder)
    current = running_status(folder)
    status = current or last_status(folder)
    if status is None and (holder := lock_holder(folder / config.state)) is not None:
        raise UserError(
            f"{folder}: process {holder} holds the node's state but does not answer yet; ask again"
        )
    if current is not None:
        health = health_of(current)
    else:
        health = health_by_files(config.name, folder, status, read_history(folder))
    if as_json:
        fields = {} if status is None else asdict(status)
        answer = {"running": current is not None, "health": health, **fields}
        click.echo(json.dumps(msgspec.to_builtins(answer), indent=1))
    else:
        click.echo(health_text(health))
        if status is not None:
            if current is None:
                click.echo(_whose_status(folder))
            click.echo(status_text(status))
    sys.exit(0 if current is not None else 1)


def _whose_status(folder: Path) -> str:
    if (folder / TOKEN_FILE).exists():  # deleted on exit
        return "It was killed or does not answer; its status at an earlier exit:"
    return "Its final status:"


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
