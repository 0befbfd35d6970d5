"""A federation whose members stand on the network's hosts: founded on the spot, real processes.

Member i is host i. Its status port is on the loopback of its own namespace.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from defl.cards import Card, Reach
from defl.clients.protocol import schema_of
from defl.committee import DEFAULTS, Charter, Timing
from defl.founding import found
from defl.lab.chaos.hosts import Host, run
from defl.lab.experiments.processes import CLIENT
from defl.node.relay.files import relay_card_file
from defl.node.report.model_file import write_model
from defl.node.report.status import NodeStatus
from defl.node.report.status_client import last_status, running_status
from defl.node.setup.agreement import INITIAL_FILE, membership_of, write_federation
from defl.node.setup.config import (
    CONFIG_FILE,
    LogFormat,
    NodeConfig,
    create_node,
    read_card_file,
)
from defl.node.setup.identity import make_card, make_identity
from defl.node.setup.local import FEDERATION_FILE, Local
from defl.node.setup.processes import Processes
from defl.node.work.first_weights import first_weights
from defl.schema import Codec

# Proxies let out what looks like the web: Debian's squid allows no tunnel to another port.
PORT = 443
# As shipped, but a finished node need not serve others for a minute: the laboratory ends them.
TIMING = Timing(grace_s=120.0)


@dataclass(frozen=True, slots=True)
class Site:
    """How a member's network lets it be reached, and how it gets out."""

    reach: Reach = Reach.BOTH
    relay: bool = False
    proxy: str = ""


DIALS = Site(reach=Reach.DIAL)


@dataclass(frozen=True, slots=True)
class FederationSetting:
    """The federation of one run."""

    members: int = 4
    rounds: int = 10
    values: int = 250_000  # of four bytes
    train_s: float = 1.0
    timing: Timing = TIMING
    codec: Codec = Codec.FP32
    chunk_bytes: int = DEFAULTS.chunk_bytes
    sites: Mapping[int, Site] = field(default_factory=dict)  # the members that are not ordinary
    relays: int = 0  # on the hosts after the members', each on its own

    @property
    def model_bytes(self) -> int:
        return 4 * self.values


def found_sites(folder: Path, hosts: Sequence[Host], setting: FederationSetting) -> Local:
    """Nodes, initial weights and federation.toml."""
    project = folder / "project"
    project.mkdir(parents=True)
    text = CLIENT.format(values=setting.values, seconds=setting.train_s, later_s=0.0)
    (project / "client.py").write_text(text, encoding="utf-8")
    client = "client:client"
    relays = [make_relay(folder, host) for host in relay_hosts(hosts, setting)]
    weights, roles = first_weights(client, project, os.environ)
    draft = Charter(
        schema_of(weights, roles),
        aggregation="fed_avg",
        codec=setting.codec,
        chunk_bytes=setting.chunk_bytes,
        rules=DEFAULTS.rules,
        timing=setting.timing,
    )
    cards = []
    for host in hosts[: setting.members]:
        name = f"node-{host.number}"
        site = setting.sites.get(host.number, Site())
        address = "" if site.reach is Reach.DIAL else f"{host.address}:{PORT}"
        config = NodeConfig(
            name=name,
            reach=site.reach,
            address=address,
            listen=address,
            relay=site.relay,
            proxy=site.proxy,
            federation=f"../{FEDERATION_FILE}",
            client=client,
            project=str(project),
            log_format=LogFormat.JSON,
        )
        identity = make_identity(name)
        card = make_card(identity, address, reach=site.reach, relay=site.relay)
        create_node(folder / name, config, identity, card)
        (folder / name / CONFIG_FILE).chmod(0o600)  # it may hold the proxy's password
        cards.append(card)
    founding = found(
        draft, membership_of(cards, rounds=setting.rounds), draft.schema.flatten(weights)
    )
    federation = founding.federation
    write_model(folder / INITIAL_FILE, federation.schema, founding.weights, {"round": "0"})
    write_federation(folder / FEDERATION_FILE, federation, cards, relays)
    return Local(folder, tuple(folder / card.name for card in cards))


def relay_hosts(hosts: Sequence[Host], setting: FederationSetting) -> Sequence[Host]:
    return hosts[setting.members : setting.members + setting.relays]


def make_relay(folder: Path, host: Host) -> Card:
    name = relay_name(host)
    defl = (sys.executable, "-m", "defl.cli.main")
    address = f"{host.address}:{PORT}"
    run(*defl, "relay", "init", str(folder / name), "--name", name, "--address", address)
    return read_card_file(relay_card_file(folder / name, name))


def relay_name(host: Host) -> str:
    return f"relay-{host.number}"


def start_relay(folder: Path, host: Host) -> "subprocess.Popen[bytes]":
    """It ends with its namespace."""
    place = folder / relay_name(host)
    federation = str(folder / FEDERATION_FILE)
    command = (sys.executable, "-m", "defl.cli.main", "relay", "start", str(place))
    log = place / "relay.log"
    return host.start((*command, "--federation", federation), log, os.environ)


class Sites(Processes):
    """The nodes' processes, each in its host's namespace."""

    def __init__(self, local: Local, hosts: Sequence[Host]) -> None:
        super().__init__(local)
        self._hosts = hosts
        self.variables: dict[int, dict[str, str]] = {}  # of the environment, besides the usual

    def start_command(self, member: int) -> list[str]:
        variables = [f"{name}={value}" for name, value in self.variables.get(member, {}).items()]
        return self._hosts[member].command("env", *variables, *super().start_command(member))

    def status(self, member: int) -> NodeStatus | None:
        return self.ask(member).result()

    def ask(self, member: int) -> Future[NodeStatus | None]:
        return self._hosts[member].submit(_status, self.local.nodes[member])


def _status(node: Path) -> NodeStatus | None:
    return running_status(node) or last_status(node)
