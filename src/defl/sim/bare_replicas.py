"""The minimum that drives bare replicas: a tiny application, a federation, a durable state.

Twins, directed scripts and the explorer share it. There is no wire, no ingress and no participant.
"""

from functools import lru_cache

from defl.committee import Federation, Rules, Timing
from defl.consensus.chain import genesis_of
from defl.consensus.effects import ConsensusEffects
from defl.consensus.safety import first_record
from defl.crypto import SIGNATURE_BYTES, Signer
from defl.ids import NO_DIGEST, Digest, NodeId, Round, digest_of
from defl.messages import Agg, Block, Transaction, genesis_qc
from defl.output import Durable, Response, SafetyRecord
from defl.sim.scenario import federation_of, signers_of

# Every time step ends all views that would not end otherwise: no back-off is needed.
TIMING = Timing(view_base_s=1.0, view_cap_s=1.0)


class Tape:
    """An application that is never idle; its state is the hash of all executed transactions."""

    def genesis(self) -> bytes:
        return NO_DIGEST

    def execute(self, state: bytes, block: Block) -> tuple[bytes, tuple[Response, ...]]:
        return digest_of(state + block.id), (Response.OK,) * len(block.transactions)

    def encode(self, state: bytes) -> bytes:
        return state

    def root_of(self, encoded: bytes) -> Digest:
        return digest_of(encoded)

    def decode(self, data: bytes) -> bytes:
        return data

    def live(self, state: bytes, transaction: Transaction) -> bool:
        del state
        return transaction.round == 1

    def wanted(self, state: bytes, transaction: Transaction) -> bool:
        return self.live(state, transaction)


def mark(number: int) -> Agg:
    """A transaction that only says where it comes from."""
    return Agg(Round(number), NodeId(0), bytes(SIGNATURE_BYTES))


LIVE = mark(1)


def durable_after(durable: Durable, effects: ConsensusEffects) -> Durable:
    """What a replica has on its disk once the effects of an event are written."""
    snapshot = effects.snapshot or durable.snapshot
    lowest = snapshot.block.height if snapshot is not None else -1
    blocks = {block.id: block for block in (*durable.blocks, *effects.blocks)}
    return Durable(
        effects.record or durable.record,
        snapshot,
        tuple(block for block in blocks.values() if block.height > lowest),
    )


@lru_cache(maxsize=8)
def facts(members: int, rules: Rules) -> tuple[Federation, tuple[Signer, ...], SafetyRecord]:
    """A federation of no-op signers and the record that each of its replicas starts with."""
    signers, _ = signers_of(members, seed=1, real=False)
    federation, _ = federation_of(signers, rounds=1, rules=rules, timing=TIMING)
    genesis = genesis_of(federation, Tape())
    return federation, signers, first_record(federation.epoch, genesis_qc(genesis.id))
