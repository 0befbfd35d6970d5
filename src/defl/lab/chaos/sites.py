"""A federation whose members stand on the network's hosts: founded on the spot, real processes.

Member i is host i. Its status port is on the loopback of its own namespace.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from defl.clients.protocol import schema_of
from defl.committee import DEFAULTS, Charter, Timing
from defl.founding import found
from defl.lab.chaos.hosts import Host
from defl.lab.experiments.processes import CLIENT
from defl.node.report.model_file import write_model
from defl.node.report.status import NodeStatus
from defl.node.report.status_client import last_status, running_status
from defl.node.setup.agreement import INITIAL_FILE, membership_of, write_federation
from defl.node.setup.config import LogFormat, LogLevel, NodeConfig, create_node
from defl.node.setup.identity import make_card, make_identity
from defl.node.setup.local import FEDERATION_FILE, Local
from defl.node.setup.processes import Processes
from defl.node.work.first_weights import first_weights
from defl.schema import Codec

PORT = 7400
# As shipped, but a finished node need not serve others for a minute: the laboratory ends them.
TIMING = Timing(grace_s=120.0)


@dataclass(frozen=True, slots=True)
class FederationSetting:
    """The federation of one run."""

    members: int = 4
    rounds: int = 10
    values: int = 250_000  # of four bytes
    train_s: float = 1.0
    timing: Timing = TIMING
    codec: Codec = Codec.FP32
    log_level: LogLevel = LogLevel.INFO

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
    weights, roles = first_weights(client, project, os.environ)
    draft = Charter(
        schema_of(weights, roles),
        aggregation="fed_avg",
        codec=setting.codec,
        rules=DEFAULTS.rules,
        timing=setting.timing,
    )
    cards = []
    for host in hosts[: setting.members]:
        name = f"node-{host.number}"
        address = f"{host.address}:{PORT}"
        config = NodeConfig(
            name=name,
            address=address,
            listen=address,
            federation=f"../{FEDERATION_FILE}",
            client=client,
            project=str(project),
            log_format=LogFormat.JSON,
            log_level=setting.log_level,
        )
        identity = make_identity(name)
        card = make_card(identity, address)
        create_node(folder / name, config, identity, card)
        cards.append(card)
    founding = found(
        draft, membership_of(cards, rounds=setting.rounds), draft.schema.flatten(weights)
    )
    federation = founding.federation
    write_model(folder / INITIAL_FILE, federation.schema, founding.weights, {"round": "0"})
    write_federation(folder / FEDERATION_FILE, federation, cards)
    return Local(folder, tuple(folder / card.name for card in cards))


class Sites(Processes):
    """The nodes' processes, each in its host's namespace."""

    def __init__(self, local: Local, hosts: Sequence[Host]) -> None:
        super().__init__(local)
        self._hosts = hosts
        self.variables: dict[int, dict[str, str]] = {}  # of the environment, besides the usual

    def command(self, member: int) -> list[str]:
        variables = [f"{name}={value}" for name, value in self.variables.get(member, {}).items()]
        return self._hosts[member].command("env", *variables, *super().command(member))

    def status(self, member: int) -> NodeStatus | None:
        return self.ask(member).result()

    def ask(self, member: int) -> Future[NodeStatus | None]:
        return self._hosts[member].submit(_status, self.local.nodes[member])


def _status(node: Path) -> NodeStatus | None:
    return running_status(node) or last_status(node)
