"""Threats by name, the same for DeFL and the baselines.

`THREATS` holds the paper's (Section 3.1; settings as in its Tables 1 to 4). Attacks on updates wrap
the client from outside, so every system runs them with the same code, in the simulator and in real
processes. Label flipping needs knowledge of the data, so client factories do it. `silent` is a
crashed node. Byzantine behaviour in the protocol itself exists for DeFL only.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from defl.clients.protocol import Client
from defl.errors import UserError
from defl.ids import NodeId
from defl.lab.attacks.attack import Attack
from defl.lab.attacks.simple import gaussian, sign_flip
from defl.lab.experiments.poisoned import PoisonedClient
from defl.node.work.user_code import load_client

# Environment of a real process that attacks; see `attacked_client`.
THREAT_VARIABLE = "DEFL_THREAT"
CLIENT_VARIABLE = "DEFL_THREAT_CLIENT"  # the honest client, "module:attribute"
PROJECT_VARIABLE = "DEFL_THREAT_PROJECT"
SEED_VARIABLE = "DEFL_THREAT_SEED"
# "1" while a client is created that must train on flipped labels.
FLIP_VARIABLE = "DEFL_FLIP_LABELS"
ATTACKED_CLIENT = "defl.lab.experiments.threats:attacked_client"

# Creates a node's client; the flag says whether to flip its labels.
ClientFactory = Callable[[NodeId, bool], Client]


@dataclass(frozen=True, slots=True)
class Threat:
    name: str
    words: str  # as in the paper's tables
    attack: Attack | None = None  # on the change that local training made
    flips_labels: bool = False
    silent: bool = False
    liar: str | None = None  # a kind of sim/byzantine: DeFL only


_ALL = (
    Threat("none", "No"),
    Threat("gaussian_0.03", "Gaussian (sigma=0.03)", partial(gaussian, sigma=0.03)),
    Threat("gaussian_1", "Gaussian (sigma=1.00)", partial(gaussian, sigma=1.0)),
    Threat("sign_flip_1", "Sign-flipping (sigma=-1.0)", partial(sign_flip, factor=-1.0)),
    Threat("sign_flip_2", "Sign-flipping (sigma=-2.0)", partial(sign_flip, factor=-2.0)),
    Threat("sign_flip_4", "Sign-flipping (sigma=-4.0)", partial(sign_flip, factor=-4.0)),
    Threat("label_flip", "Label-flipping", flips_labels=True),
    Threat("silent", "Faulty (silent)", silent=True),
    Threat("wrong_round", "UPD of a wrong round", liar="wrong-round"),
    Threat("early_agg", "AGG before GST_LT", liar="early-agg"),
    Threat("equivocating_leader", "Leader with two proposals", liar="equivocator"),
    Threat("forging_leader", "Leader with forged certificates", liar="forger"),
)
THREATS: dict[str, Threat] = {threat.name: threat for threat in _ALL}
NONE = THREATS["none"]


def threat_named(name: str) -> Threat:
    if name not in THREATS:
        raise UserError(f"unknown threat {name!r}; choose one of: {', '.join(THREATS)}")
    return THREATS[name]


def attacked(nodes: int, threat: str, count: int) -> dict[NodeId, str]:
    """The last `count` of the nodes; node 0 stays honest, and its model is the one judged."""
    threat_named(threat)
    if not 0 <= count < nodes:
        raise UserError(f"{count} attacked nodes of {nodes}; choose 0 to {nodes - 1}")
    return {NodeId(node): threat for node in range(nodes - count, nodes)}


def client_of(threat: Threat, factory: ClientFactory, *, seed: int, node: NodeId) -> Client:
    """The node's client under this threat."""
    client = factory(node, threat.flips_labels)
    if threat.attack is None:
        return client
    return PoisonedClient(client, threat.attack, seed=seed, node=node)


# --- Real processes ------------------------------------------------------------------------


def environment_of(threat: Threat, client: str, project: Path, *, seed: int) -> dict[str, str]:
    """For nodes whose settings name `ATTACKED_CLIENT`; others ignore it."""
    return {
        THREAT_VARIABLE: threat.name,
        CLIENT_VARIABLE: client,
        PROJECT_VARIABLE: str(project.resolve()),
        SEED_VARIABLE: str(seed),
    }


def attacked_client() -> Client:
    """The client of a real node, chosen by its environment."""
    try:
        threat = threat_named(os.environ[THREAT_VARIABLE])
        spec, project = os.environ[CLIENT_VARIABLE], Path(os.environ[PROJECT_VARIABLE])
        seed, node = int(os.environ[SEED_VARIABLE]), NodeId(int(os.environ["DEFL_NODE"]))
    except KeyError as missing:
        raise UserError(f"{missing.args[0]} is not set; see threats.environment_of") from None
    os.environ[FLIP_VARIABLE] = "1" if threat.flips_labels else "0"
    client = load_client(spec, project)
    if threat.attack is None:
        return client
    return PoisonedClient(client, threat.attack, seed=seed, node=node)
