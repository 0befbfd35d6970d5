"""The baselines by profile: number of seats, messages, and the machine of each seat.

Both drivers use this; nothing else needs to know which system it runs.
"""

from dataclasses import dataclass

import numpy as np

from defl.committee import Federation
from defl.crypto import Scheme, Signer
from defl.ids import NodeId
from defl.lab.baselines import biscotti, blockchain, fl, swarm
from defl.lab.baselines.frames import Frames
from defl.lab.baselines.machine import Machine, Merge
from defl.schema import Row

Profile = fl.FlProfile | swarm.SwarmProfile | blockchain.BiscottiProfile

# Each system's name in tables, with the profile that the paper measured.
PAPER: dict[str, Profile] = {
    "fl": fl.FlProfile(),
    "swarm": swarm.SwarmProfile(),
    "biscotti": blockchain.PAPER,
}


@dataclass(frozen=True, slots=True)
class Keys:
    signer: Signer
    scheme: Scheme
    last: bytes  # the public key of the last seat: Swarm Learning's ordering service


def seats_of(profile: Profile, nodes: int) -> int:
    """The nodes, and one more for FL's server or Swarm Learning's ordering service."""
    return nodes if isinstance(profile, blockchain.BiscottiProfile) else nodes + 1


def frames_of(profile: Profile, federation: Federation) -> Frames:
    match profile:
        case fl.FlProfile():
            return fl.frames_of(federation)
        case swarm.SwarmProfile():
            return swarm.frames_of(federation)
        case blockchain.BiscottiProfile():
            return blockchain.frames_of(federation)


def machine_of(
    profile: Profile,
    federation: Federation,
    seat: NodeId,
    keys: Keys,
    initial: Row,
    *,
    seed: int,
    merge: Merge | None = None,
) -> Machine:
    """`merge` replaces the rule in this seat: a Byzantine server or leader."""
    match profile:
        case fl.FlProfile():
            return fl.machine_of(federation, seat, initial, profile, merge)
        case swarm.SwarmProfile():
            return swarm.machine_of(
                federation, seat, initial, keys.signer, keys.scheme, keys.last, profile, merge
            )
        case blockchain.BiscottiProfile():
            rng = np.random.default_rng([seed, 3, seat])
            return biscotti.BiscottiNode(
                federation, seat, keys.signer, keys.scheme, initial, profile, rng, merge
            )
