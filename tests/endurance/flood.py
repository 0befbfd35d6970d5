"""Measurement of the cores that f members use when they flood a node with unsigned frames.

    python tests/endurance/flood.py [--nodes 13] [--frames 300]

A node in the middle of a round reads, judges and handles frames of each kind, and their answers are
encoded. The table shows the CPU time per frame, and what f members use that send as much as
they can: first with the transport's limit alone (5,000 frames a second on each of two lanes), then
within their budgets. "price" is what the budget charges for a frame, in microseconds; a price below
the measured time means that PRICES in budget.py has to be corrected.
"""

import argparse
import random
import time
from collections.abc import Callable

from defl.budget import Budget, verifications_per_s
from defl.errors import PeerFault
from defl.ids import Digest, NodeId, Round, View
from defl.messages import (
    TRANSACTIONS_PER_MEMBER,
    Agg,
    Block,
    BlockRequest,
    Blocks,
    Chunk,
    ChunkRequest,
    Gossip,
    Have,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    StatementsRequest,
    Status,
)
from defl.node.net.limits import TransportLimits
from defl.output import Envelope, Event, Faulted, OtherEpoch, Question, Received
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions
from defl.sim.scenario import cluster_of
from defl.wire import encode

SIGNATURE_S = 0.00011
LIAR = NodeId(0)
HONEST = 1  # the node that is flooded
LANES = 2
# The virtual seconds between two frames.
APART_S = 0.0002


def in_mid_round(nodes: int) -> Cluster:
    """A federation in which all updates are on their way to all members."""
    cluster = cluster_of(
        nodes,
        rounds=3,
        seed=2,
        conditions=Conditions(bandwidth_bytes_s=3e3, work_s=0.3),
        values=3000,
        chunk_bytes=256,
    )
    pool = cluster.nodes[HONEST].behaviour.participant.pool
    cluster.run(until=lambda: pool.stored["fetches"] >= nodes - 3 or cluster.now > 20)
    return cluster


def floods(cluster: Cluster, rng: random.Random) -> dict[str, Callable[[], bytes]]:
    participant = cluster.nodes[HONEST].behaviour.participant
    pool, replica = participant.pool, participant.replica
    digests = [d for d in pool.labels.values() if not pool.has(d)]
    manifests = {digest: pool._transfer.manifest(digest) for digest in digests}
    known = next(offer for (_, author), offer in pool._offers.items() if author != HONEST)
    size = len(known.manifest.chunks)
    longest = TRANSACTIONS_PER_MEMBER * cluster.federation.committee.slots
    junk = tuple(Agg(Round(2**40 + i), LIAR, rng.randbytes(64)) for i in range(longest))

    def noise() -> Digest:
        return Digest(rng.randbytes(32))

    def have() -> Have:
        bits = rng.getrandbits(size) or 1
        return Have(rng.choice(digests), bits.to_bytes((size + 7) // 8, "little"))

    def manifest() -> ManifestAnswer:
        found = manifests[rng.choice(digests)]
        assert found is not None
        return ManifestAnswer(found)

    messages: dict[str, Callable[[], Message]] = {
        "Status of a far view": lambda: Status(View(2**60), View(2**60)),
        "Status of view 0": lambda: Status(View(0), View(0)),
        "BlockRequest": lambda: BlockRequest(replica.head.id, 0),
        "ManifestRequest": lambda: ManifestRequest(rng.choice(digests)),
        "ManifestRequest, noise": lambda: ManifestRequest(noise()),
        "ChunkRequest": lambda: ChunkRequest(cluster.federation.initial, 0),
        "ChunkRequest, noise": lambda: ChunkRequest(noise(), 0),
        "NotHeld": lambda: NotHeld(rng.choice(digests)),
        "Have": have,
        "StatementsRequest": StatementsRequest,
        "ManifestAnswer": manifest,
        "known Offer": lambda: known,
        "unwanted Chunk": lambda: Chunk(noise(), 0, memoryview(bytes(256))),
        "AGGs of a far round": lambda: Gossip(junk),
        "Blocks of such AGGs": lambda: Blocks((_block(cluster, junk),)),
    }
    made: dict[str, Callable[[], bytes]] = {
        name: (lambda make=make: encode(make())) for name, make in messages.items()
    }
    made["not a message"] = lambda: rng.randbytes(64)
    made["another epoch"] = lambda: encode(Status(View(0), View(0)), 9)
    return made


def _block(cluster: Cluster, transactions: tuple[Agg, ...]) -> Block:
    head = cluster.nodes[HONEST].behaviour.participant.replica.head
    return Block(head.header, transactions)


def handle(cluster: Cluster, frame: bytes, now: float) -> Message | None:
    """Everything that a node does with a frame, but for its sockets and its disk."""
    node = cluster.nodes[HONEST]
    participant = node.behaviour.participant
    message: Message | OtherEpoch | None = None
    event: Event | None
    try:
        message = node.ingress.read(LIAR, frame)
        if isinstance(message, OtherEpoch):
            event, message = message, None
        else:
            wanted = participant.wanted(LIAR, message)
            is_event = wanted is None or isinstance(wanted, Question)
            event = wanted if is_event else Received(LIAR, wanted, 0)
    except PeerFault as fault:
        event = Faulted(LIAR, str(fault))
    if event is not None:
        for item in participant.handle(event, now).send:
            if isinstance(item, Envelope):
                encode(item.message, item.epoch)
    return message


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=13)
    parser.add_argument("--frames", type=int, default=300)
    options = parser.parse_args()
    cluster = in_mid_round(options.nodes)
    committee = cluster.federation.committee
    limit = TransportLimits().messages_per_s * LANES
    per_s = verifications_per_s(committee)
    print(f"n = {committee.size}, f = {committee.faults}: {per_s} units a second for each member")
    print(f"{'':24s} {'bytes':>7s} {'us':>7s} {'price':>7s} {'before':>7s} {'now':>7s}  cores")
    now, budget = cluster.now, Budget(committee)
    for name, make in floods(cluster, random.Random(1)).items():  # noqa: S311
        frames = [make() for _ in range(options.frames)]
        price = 0.0
        began = time.process_time()
        for frame in frames:
            now += APART_S
            message = handle(cluster, frame, now)
            budget.wait_s(LIAR, now)
            price += budget.charge(LIAR, message, len(frame), now)
        frame_s = (time.process_time() - began) / len(frames)
        price /= len(frames)
        before, after = (committee.faults * rate * frame_s for rate in (limit, per_s / price))
        size = sum(map(len, frames)) / len(frames)
        price_us = price * SIGNATURE_S * 1e6
        row = f"{size:7.0f} {frame_s * 1e6:7.1f} {price_us:7.1f} {before:7.2f} {after:7.2f}"
        print(f"{name:24s} {row}")


if __name__ == "__main__":
    main()
