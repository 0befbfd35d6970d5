"""A whole federation on this machine: one folder and one process per node, real TLS on loopback.

For trying things out and for measuring. Each node has its own folder and private key, but all keys
are on one machine: organisations use `defl node init` instead.
"""

import os
import random
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from defl.cards import Card
from defl.clients.protocol import Roles, schema_of
from defl.committee import DEFAULTS, Charter, Rules, Timing, require_counts
from defl.errors import UserError
from defl.founding import found
from defl.node.net.proxy import WITHOUT_PROXY
from defl.node.report.model_file import write_model
from defl.node.report.tracking import Track
from defl.node.setup.agreement import INITIAL_FILE, membership_of, read_federation, write_federation
from defl.node.setup.config import WORK_TIME_MAX_S, LogFormat, LogLevel, NodeConfig, create_node
from defl.node.setup.identity import make_card, make_identity
from defl.node.work.environment import ONE_THREAD
from defl.node.work.first_weights import first_weights
from defl.schema import Weights

FEDERATION_FILE = "federation.toml"


@dataclass(frozen=True, slots=True)
class Local:
    folder: Path
    nodes: tuple[Path, ...]


# Below the ports that systems give to outgoing connections: one of those could take a port between
# the probe and the start of its node.
PORTS = range(12_000, 32_000)
PROBES_MAX = 1000


def free_ports(count: int) -> list[int]:
    """Ports that no process uses now."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(PORTS, min(len(PORTS), PROBES_MAX)):
        if len(ports) == count:
            break
        with socket.socket() as probe, suppress(OSError):  # in use
            probe.bind(("127.0.0.1", port))
            ports.append(port)
    if len(ports) < count:
        raise UserError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")
    return ports


@contextmanager
def founding_folder(
    wanted: Path | None, prefix: str, hold: Callable[[Path], None]
) -> Iterator[Path]:
    """An empty folder, or a new temporary one; left as it was if no federation is founded in it.

    This includes interrupts: half a federation is useless, and it holds keys. `hold` keeps other
    runs out, or raises: from then on what is in the folder is ours to delete.
    """
    existed = wanted is not None and wanted.exists()
    if wanted is not None and existed:
        _require_empty(wanted)
    try:
        folder = wanted or Path(tempfile.mkdtemp(prefix=prefix))
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{error.filename or wanted}: no folder can be created there: {error.strerror}; "
            "name another one with --out"
        ) from error
    hold(folder)
    _require_empty(folder)  # another run may have founded its federation here before we held it
    with ExitStack() as unfinished:
        unfinished.callback(_undo, folder, existed=existed)
        yield folder
        unfinished.pop_all()  # founded: it stays


def _undo(folder: Path, *, existed: bool) -> None:
    for inside in folder.iterdir():
        if inside.is_dir() and not inside.is_symlink():
            shutil.rmtree(inside)
        else:
            inside.unlink()
    if not existed:
        folder.rmdir()


def _require_empty(folder: Path) -> None:
    if not folder.is_dir() or any(folder.iterdir()):
        raise UserError(f"{folder} is not an empty folder; name a new one with --out")


def existing_local(folder: Path) -> Local:
    """The federation that was founded in this folder."""
    cards = read_federation(folder / FEDERATION_FILE).cards
    return Local(folder, tuple(folder / card.name for card in cards))


def make_local(
    folder: Path,
    project: Path,
    client: str,
    count: int,
    rounds: int,
    *,
    timing: Timing,
    aggregation: str = DEFAULTS.aggregation,
    rules: Rules = DEFAULTS.rules,
    chunk_bytes: int = DEFAULTS.chunk_bytes,
    log_format: LogFormat = LogFormat.TEXT,
    log_level: LogLevel = LogLevel.INFO,
    work_time_max_s: float = WORK_TIME_MAX_S,
    track: Track = Track.NONE,
    keep_best: str = "",
    others: Mapping[int, str] | None = None,
    weights: Weights | None = None,
    member_weights: Mapping[str, int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Local:
    """Nodes, initial weights and federation.toml.

    `others` are nodes with a client of their own. The weights are the client's unless given; it
    runs with `environment` added to this process's. `member_weights`: how much each member counts
    in the mean, by name.
    """
    require_counts(count, rounds)  # before the user's code sees them
    roles: Roles = {}
    if weights is None:
        variables = {**environment_of(0, count), **(environment or {})}
        weights, roles = first_weights(client, project, variables)
    draft = Charter(
        schema_of(weights, roles),
        aggregation=aggregation,
        chunk_bytes=chunk_bytes,
        rules=rules,
        timing=timing,
    )
    clients = [(others or {}).get(number, client) for number in range(count)]
    cards = make_nodes(
        folder, clients, project, log_format, work_time_max_s, track, keep_best, log_level
    )
    membership = membership_of(cards, rounds=rounds, weights=member_weights)
    founding = found(draft, membership, draft.schema.flatten(weights))
    federation = founding.federation
    write_model(folder / INITIAL_FILE, federation.schema, founding.weights, {"round": "0"})
    write_federation(folder / FEDERATION_FILE, federation, cards)
    return Local(folder, tuple(folder / card.name for card in cards))


def environment_of(member: int, count: int) -> dict[str, str]:
    """Tells the user's code which part of the data is its own."""
    return {**ONE_THREAD, **os.environ, "DEFL_NODE": str(member), "DEFL_NODES": str(count)}


def make_nodes(
    folder: Path,
    clients: list[str],
    project: Path,
    log_format: LogFormat,
    work_time_max_s: float = WORK_TIME_MAX_S,
    track: Track = Track.NONE,
    keep_best: str = "",
    log_level: LogLevel = LogLevel.INFO,
) -> list[Card]:
    """Identities, settings and cards; node i has the folder node-i."""
    cards = []
    for number, (client, port) in enumerate(zip(clients, free_ports(len(clients)), strict=True)):
        name = f"node-{number}"
        address = f"127.0.0.1:{port}"
        config = NodeConfig(
            name=name,
            address=address,
            listen=address,
            proxy=WITHOUT_PROXY,
            federation=f"../{FEDERATION_FILE}",
            client=client,
            project=str(project.resolve()),
            # The whole federation is the user's, and so is the shell that it was started from.
            client_environment=("*",),
            log_format=log_format,
            log_level=log_level,
            work_time_max_s=work_time_max_s,
            track=track,
            keep_best=keep_best,
        )
        identity = make_identity(name)
        card = make_card(identity, address)
        create_node(folder / name, config, identity, card)
        cards.append(card)
    return cards
