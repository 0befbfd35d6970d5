"""A whole federation on this machine: one folder and one process per node, real TLS on loopback.

For trying things out and for measuring. Each node's private key is made in its own folder, but all
of them lie on one machine: organisations do it with `defl node init` instead.
"""

import os
import random
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from defl.aggregation.memory import with_memory
from defl.aggregation.rules import DEFAULT, REMEMBERING
from defl.clients.protocol import Roles, schema_of, starting_row
from defl.committee import Rules, Timing, require_counts
from defl.errors import DeflError, UserError
from defl.node.report.model_file import write_model
from defl.node.report.tracking import Track
from defl.node.setup.config import (
    INITIAL_FILE,
    WORK_TIME_MAX_S,
    LogFormat,
    NodeConfig,
    create_node,
    federation_of,
    write_federation,
)
from defl.node.setup.identity import Card, make_card, make_identity
from defl.node.work.first_weights import first_weights
from defl.pool.weights import FP32, encode, manifest_of
from defl.schema import Weights

FEDERATION_FILE = "federation.toml"
CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Local:
    folder: Path
    nodes: tuple[Path, ...]


# Below the ports that systems give to outgoing connections: one of those could take a port between
# the moment it is found free and its node's start.
PORTS = range(12_000, 32_000)
TRIED_MAX = 1000


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, min(len(PORTS), TRIED_MAX)):
        if len(found) == count:
            break
        with socket.socket() as probe, suppress(OSError):  # taken
            probe.bind(("127.0.0.1", port))
            found.append(port)
    if len(found) < count:
        raise UserError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")
    return found


def new_folder(folder: Path) -> Path:
    """Made if it is missing; nobody's files are mixed with a federation's."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; name a new folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def founding_folder(wanted: Path | None) -> Iterator[Path]:
    """A new folder, or a temporary one; left as it was if no federation can be made in it."""
    there = wanted is not None and wanted.exists()
    folder = new_folder(wanted or Path(tempfile.mkdtemp(prefix="defl-run-")))
    try:
        yield folder
    except DeflError:
        for inside in folder.iterdir():
            if inside.is_dir():
                shutil.rmtree(inside)
            else:
                inside.unlink()
        if not there:
            folder.rmdir()
        raise


def make_local(
    folder: Path,
    project: Path,
    client: str,
    count: int,
    rounds: int,
    *,
    timing: Timing,
    aggregation: str = DEFAULT,
    rules: Rules = Rules.HOTSTUFF,
    chunk_bytes: int = CHUNK_BYTES,
    log_format: LogFormat = LogFormat.TEXT,
    work_time_max_s: float = WORK_TIME_MAX_S,
    track: Track = Track.NONE,
    keep_best: str = "",
    others: Mapping[int, str] | None = None,
    weights: Weights | None = None,
) -> Local:
    """Nodes, initial weights and federation.toml.

    `others` are nodes with a client of their own. The weights are the client's unless given.
    """
    require_counts(count, rounds)  # before the user's code sees them
    roles: Roles = {}
    if weights is None:
        weights, roles = first_weights(client, project, environment_of(0, count))
    schema = schema_of(weights, roles)
    if aggregation in REMEMBERING:
        schema = with_memory(schema, count)
    row = starting_row(weights, schema)
    initial = manifest_of(encode(row, schema, FP32), schema, FP32, chunk_bytes).digest
    clients = [(others or {}).get(number, client) for number in range(count)]
    cards = make_nodes(folder, clients, project, log_format, work_time_max_s, track, keep_best)
    federation = federation_of(
        cards,
        schema,
        initial,
        timing=timing,
        rounds=rounds,
        aggregation=aggregation,
        chunk_bytes=chunk_bytes,
        rules=rules,
    )
    write_model(folder / INITIAL_FILE, schema, row, {"round": "0"})
    write_federation(folder / FEDERATION_FILE, federation, cards)
    return Local(folder, tuple(folder / card.name for card in cards))


def environment_of(member: int, count: int) -> dict[str, str]:
    """By this the user's code knows which part of the data is its own."""
    return {**os.environ, "DEFL_NODE": str(member), "DEFL_NODES": str(count)}


def make_nodes(
    folder: Path,
    clients: list[str],
    project: Path,
    log_format: LogFormat,
    work_time_max_s: float = WORK_TIME_MAX_S,
    track: Track = Track.NONE,
    keep_best: str = "",
) -> list[Card]:
    """Identities, settings and cards; node i is in the folder node-i."""
    cards = []
    for number, (client, port) in enumerate(zip(clients, free_ports(len(clients)), strict=True)):
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
            work_time_max_s=work_time_max_s,
            track=track,
            keep_best=keep_best,
        )
        identity = make_identity(name)
        card = make_card(identity, address)
        create_node(folder / name, config, identity, card)
        cards.append(card)
    return cards
