"""A whole federation on this machine: one folder and one process per node, real TLS on loopback.

For trying things out and for measuring. Each node's private key is made in its own folder, but all
of them lie on one machine: organisations do it with `defl node init` instead.
"""

import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from defl.committee import Federation
from defl.node.config import INITIAL_FILE, LogFormat, NodeConfig, create_node, write_federation
from defl.node.identity import Card, make_card, make_identity
from defl.node.model import write_model
from defl.schema import Row, Schema

FEDERATION_FILE = "federation.toml"


@dataclass(frozen=True, slots=True)
class Local:
    folder: Path
    nodes: tuple[Path, ...]


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


def make_nodes(
    folder: Path,
    count: int,
    *,
    client: str,
    project: Path,
    log_format: LogFormat = LogFormat.TEXT,
) -> list[Card]:
    """Identities, settings and cards; node i is in the folder node-i."""
    cards = []
    for number, port in enumerate(free_ports(count)):
        name = f"node-{number}"
        address = f"127.0.0.1:{port}"
        config = NodeConfig(
            name=name,
            address=address,
            listen=address,
            federation=f"../{FEDERATION_FILE}",
            client=client,
            project=str(project.resolve()),
            log_format=log_format,
        )
        identity = make_identity(name)
        card = make_card(identity, address)
        create_node(folder / name, config, identity, card)
        cards.append(card)
    return cards


def write_agreement(
    folder: Path, federation: Federation, cards: Sequence[Card], schema: Schema, row: Row
) -> Local:
    write_model(folder / INITIAL_FILE, schema, row, {"round": "0"})
    write_federation(folder / FEDERATION_FILE, federation, cards)
    return Local(folder, tuple(folder / card.name for card in cards))


def start_node(node: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Its log is in its folder; killing the process is what a crash is."""
    with (node / "node.log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own command in a folder that we made
            [sys.executable, "-m", "defl.cli.main", "node", "start", str(node)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(environment),
            start_new_session=True,
        )
