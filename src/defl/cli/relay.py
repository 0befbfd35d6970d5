"""`defl relay`: a machine that connects members which can only dial, and sees encrypted bytes."""

import asyncio
import json
import os
import signal
from pathlib import Path

import click

from defl.cli.node import listen_for
from defl.node.event_loop import loop_factory
from defl.node.relay.file_watch import FileWatch, follow_files, report_regularly
from defl.node.relay.files import RelayConfig, create_relay, read_relay, relay_card
from defl.node.relay.service import Relay
from defl.node.report.log import Log, configure_logging
from defl.node.report.peer_log import FloodLog, report_crowd
from defl.node.report.service_manager import ServiceManager
from defl.node.setup.config import read_identity
from defl.node.setup.fingerprint import fingerprint
from defl.node.setup.identity import make_identity

INIT_EXAMPLES = """
Example:

\b
  defl relay init relay --name relay --address relay.example.org:443

Exit code 0: the relay is created; 2: one exists already, or a name or address is invalid.
"""
START_EXAMPLES = """
Example:

\b
  defl relay start relay --federation federation.toml

Exit code 0: it was stopped; 2: it cannot start, and the message says what to do.
"""


@click.group()
def relay() -> None:
    """Connect members that can only dial: a relay passes on bytes that it cannot read."""


@relay.command(epilog=INIT_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="The relay's name in the federation.")
@click.option("--address", required=True, metavar="HOST:PORT", help="Where the members dial it.")
@click.option("--listen", metavar="HOST:PORT", help="Where it listens; default: all interfaces.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def init(folder: Path, name: str, address: str, listen: str | None, as_json: bool) -> None:
    """Create a relay: its key, TLS certificate, settings, and a card for the federation's file."""
    config = RelayConfig(name, address, listen or listen_for(address))
    identity = make_identity(name)
    card = create_relay(folder, config, identity)
    if as_json:
        key = identity.public_key.hex()
        click.echo(json.dumps({"name": name, "public_key": key, "card": str(card)}, indent=1))
        return
    click.echo(
        f"Created relay {name}, public key {identity.public_key.hex()}\n"
        f"  {card}  the card: give it to whoever creates the federation's file\n"
        f"Next: defl federation create CARD... --relay {card.name} --model MODEL -o FILE\n"
        f"then: defl relay start {folder} --federation FILE"
    )


@relay.command(epilog=START_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--federation",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The agreed file: its members are served, and nobody else.",
)
@click.option(
    "--lineage",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Proves members that joined later: defl export NODE lineage.json --lineage",
)
@click.option("--json", "as_json", is_flag=True, help="Log lines as JSON objects.")
def start(folder: Path, federation: Path, lineage: Path | None, as_json: bool) -> None:
    """Run the relay in this terminal until Ctrl-C or SIGTERM.

    It writes nothing to disk. The files are read again when they change. A machine that only dials
    and asks for a place (defl node join) is served if its card, NAME.join.toml, is in DIR/cards.
    SIGUSR1 logs the relay's counts.
    """
    configure_logging(as_json=as_json)
    manager = ServiceManager.take_from(os.environ, os.getpid())
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(folder, federation, lineage, Log(), manager))


async def _serve(
    folder: Path, federation: Path, lineage: Path | None, log: Log, manager: ServiceManager
) -> None:
    config = read_relay(folder)
    identity = read_identity(folder, config.name)
    watch = FileWatch(folder, federation, lineage, log)
    card = relay_card(watch.agreement, identity, federation)
    origin, on_flood = watch.agreement.federation.origin, FloodLog(log).report
    running = Relay(identity, origin, config.listen_at, on_flood=on_flood)
    running.agree(watch.members)
    await running.start()
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: log.info("relay", **running.counts()))
    log.info(
        f"{card.name} relays at {card.address}",
        members=len(watch.members),
        federation=fingerprint(watch.agreement.federation.chain),
    )
    following = [
        loop.create_task(follow_files(running, watch)),
        loop.create_task(report_regularly(running, log)),
        loop.create_task(report_crowd(log, lambda: running.turned_away)),
        loop.create_task(
            manager.keep_informed(
                lambda: f"{len(watch.members)} members, {running.server.spliced} pairs connected"
            )
        ),
    ]
    manager.ready()
    try:
        await stopped.wait()
    finally:
        manager.stopping()
        for task in following:
            task.cancel()
        await running.close()
        log.info("relay stopped", **running.counts())
