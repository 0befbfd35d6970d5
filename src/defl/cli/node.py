"""`defl node init`, `card` and `check`: setting up one organisation's node."""

import json
import sys
from ipaddress import ip_address
from pathlib import Path

import click

from defl.cards import Reach, whereabouts
from defl.errors import UserError
from defl.node.setup.config import (
    CONFIG_FILE,
    KEY_FILE,
    NodeConfig,
    card_file,
    create_node,
    renew_card,
)
from defl.node.setup.identity import make_card, make_identity, split_address

INIT_EXAMPLES = """
Example:

\b
  defl node init alice --name alice --address alice.example.org:7400
  defl node init bob --name bob --reach dial    # bob's network lets nothing in

Exit code 0: the node is created; 2: a node exists already, or a name or address is invalid.
"""
CARD_EXAMPLES = """
Example:

\b
  defl node card alice

Exit code 0: the card is written; 2: there is no node in the folder.
"""
CHECK_EXAMPLES = """
Peers are called as the node would call them, through the proxy of node.toml or the environment
(HTTPS_PROXY, NO_PROXY). For each one that cannot be reached, one sentence says what is in the way
and whom to ask: a closed port, a firewall, DNS, the proxy, TLS inspection (with the certificate
that was seen), a wrong clock, another key. With --json its "kind" tells which.

The training code is loaded once in a process of its own, with your data, unless the node runs. A
classifier whose labels are all of one class gets a warning: such a member cannot teach the others.

Examples:

\b
  defl node check alice
  defl node check alice --no-peers --no-client
  defl node check alice --json

Exit code 0: ready; 1: a check does not hold; 2: there is no node in the folder.
"""
# Distance of the metrics port from the node's port, so that nodes on one machine do not collide.
TELEMETRY_PORT_STEP = 1000
PORT_MAX = 65535


@click.group()
def node() -> None:
    """Set up and run your organisation's node."""


@node.command(epilog=INIT_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="The node's name in the federation.")
@click.option("--address", default="", metavar="HOST:PORT", help="Where the other members dial it.")
@click.option(
    "--reach",
    type=click.Choice([reach.value for reach in Reach]),
    default=Reach.BOTH.value,
    show_default=True,
    help="dial: your network lets nothing in, and the node only dials.",
)
@click.option("--relay", is_flag=True, help="Also connect members that can only dial.")
@click.option("--listen", metavar="HOST:PORT", help="Where it listens; default: all interfaces.")
@click.option("--client", default="", metavar="MODULE:ATTRIBUTE", help="Your training code.")
@click.option("--project", default=".", help="The folder of that code, relative to DIR.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def init(
    folder: Path,
    name: str,
    address: str,
    reach: str,
    relay: bool,
    listen: str | None,
    client: str,
    project: str,
    as_json: bool,
) -> None:
    """Create a node: its key, TLS certificate, settings, and a card for the other members.

    The key never leaves DIR, and an existing one is never overwritten.
    """
    if not address and reach != Reach.DIAL:
        raise UserError(
            "name the --address HOST:PORT where the other members dial this node; if your network "
            "lets nothing in, write --reach dial instead"
        )
    config = NodeConfig(
        name=name,
        reach=Reach(reach),
        address=address,
        listen=listen_for(address) if listen is None and reach != Reach.DIAL else listen or "",
        relay=relay,
        client=client,
        project=project,
        telemetry_port=_telemetry_port(split_address(address)[1]) if address else 0,
    )
    identity = make_identity(name)
    card = make_card(identity, address, reach=config.reach, relay=relay)
    create_node(folder, config, identity, card)
    summary = {
        "name": name,
        "public_key": identity.public_key.hex(),
        "key": str(folder / KEY_FILE),
        "config": str(folder / CONFIG_FILE),
        "card": str(card_file(folder, name)),
    }
    if as_json:
        click.echo(json.dumps(summary, indent=1))
        return
    click.echo(
        f"Created node {name}, public key {summary['public_key']}\n"
        f"  {summary['key']}  the private key: never share it\n"
        f"  {summary['config']}  settings, with comments\n"
        f"  {summary['card']}  the card: give it to the other members\n"
        "Next: collect the cards of all members and create the federation's file:\n"
        "  defl federation create CARD... --model MODEL -o federation.toml\n"
        "or ask for a place in a running federation: defl node join --help"
    )


def listen_for(address: str) -> str:
    host, port = split_address(address)
    return f"{_interface(host)}:{port}"


def _interface(host: str) -> str:
    """All interfaces, unless the address is a loopback one."""
    try:
        address = ip_address(host)
    except ValueError:
        return "127.0.0.1" if host == "localhost" else "0.0.0.0"  # noqa: S104 - other members must reach it
    if address.version == 6:
        return "[::1]" if address.is_loopback else "[::]"
    return host if address.is_loopback else "0.0.0.0"  # noqa: S104 - likewise


def _telemetry_port(port: int) -> int:
    above = port + TELEMETRY_PORT_STEP
    return above if above <= PORT_MAX else port - TELEMETRY_PORT_STEP


@node.command(epilog=CARD_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def card(folder: Path, as_json: bool) -> None:
    """Sign a new card after address, reach or relay in node.toml was changed."""
    signed = renew_card(folder)
    path = card_file(folder, signed.name)
    if as_json:
        summary = {"card": str(path), "address": signed.address, "serial": signed.serial}
        click.echo(json.dumps(summary, indent=1))
        return
    click.echo(f"{path}: {signed.name} {whereabouts(signed)}, serial {signed.serial}")


@node.command(epilog=CHECK_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--peers/--no-peers", default=True, help="Also try to reach the other members.")
@click.option("--client/--no-client", default=True, help="Also load the training code.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def check(folder: Path, peers: bool, client: bool, as_json: bool) -> None:
    """Is the node ready? Checks key, card, federation, clock, disk, port, training code, peers."""
    # Not at the top: a node that starts needs neither.
    from defl.node.setup.preflight import preflight  # noqa: PLC0415
    from defl.node.setup.requirements import all_hold  # noqa: PLC0415

    checks = preflight(folder, peers=peers, client=client)
    ready = all_hold(checks)
    if as_json:
        report = {"ready": ready, "checks": [item.json for item in checks]}
        click.echo(json.dumps(report, indent=1))
    else:
        for item in checks:
            click.echo(item.line)
        click.echo("\nready" if ready else "\nNOT READY: see the lines that begin with NO")
    sys.exit(0 if ready else 1)
