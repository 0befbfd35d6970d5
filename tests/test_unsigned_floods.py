"""Floods of well-formed frames that cost a node time without any signature check.

Every message has a price, all frames of a peer are paid from its one budget, and a peer over its
budget is read more slowly. So f members that flood use a bounded share of a node's processor, and
honest members never wait. Processor time is virtual: 0.11 ms for one unit of work.
"""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import get_args

import pytest

from defl.budget import PRICES, Budget, price_of, verifications_per_s
from defl.committee import Committee
from defl.ids import Digest, NodeId, View
from defl.ingress import Ingress
from defl.messages import (
    TRANSACTIONS_PER_MEMBER,
    BlockRequest,
    Blocks,
    Certificates,
    Chunk,
    ChunkRequest,
    Evidence,
    Gossip,
    Have,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    StatementsRequest,
    Status,
)
from defl.output import Connected, Event, Received
from defl.participant import Participant
from defl.sim.processor import Processor, ProcessorWorld
from defl.sim.virtual_clock import VirtualClock
from defl.wire import encode
from support.builders import Small, let_sign, name

UNIT_S = 0.00011
SIZE = 13
SMALL = Small(SIZE)
ME, GOOD = NodeId(0), NodeId(2)
BYZANTINE = tuple(NodeId(i) for i in range(SIZE - 4, SIZE))  # f = 4


def committee_of(size: int) -> Committee:
    return Committee(tuple(bytes([i]) * 32 for i in range(size)))


# --- Prices ----------------------------------------------------------------------------------


def test_every_message_type_has_a_price() -> None:
    assert set(PRICES) == set(get_args(Message))
    for price in PRICES.values():
        assert price.frame >= 0.5
        assert price.bytes_per_unit > 0


@pytest.mark.parametrize("message", SMALL.messages(), ids=lambda m: type(m).__name__)
def test_every_message_is_charged_wanted_or_not(message: Message) -> None:
    committee, size = SMALL.federation.committee, len(encode(message))
    budget = Budget(committee)
    frames = 0
    while budget.wait_s(GOOD, 1.0) == 0:
        budget.charge(GOOD, message, size, 1.0)
        frames += 1

    assert frames < 4 * verifications_per_s(committee)


def test_unwanted_transactions_are_charged_one_by_one() -> None:
    committee = committee_of(SIZE)
    agg = SMALL.agg(3, 2**40)
    few, many = Gossip((agg,)), Gossip((agg,) * 100)
    block = SMALL.block((agg,) * 100)
    size = len(encode(many))

    cheap, dear = (price_of(gossip, size, committee) for gossip in (few, many))
    assert dear > 5 * cheap
    assert price_of(Blocks((block,)), size, committee) == dear
    assert price_of(SMALL.proposal(block), size, committee) == dear


def test_a_frame_that_is_a_fault_costs_more_than_any_reading_of_its_bytes() -> None:
    committee, size = committee_of(SIZE), 10**6
    transactions = size // len(encode(SMALL.agg(3, 1)))
    junk = Gossip((SMALL.agg(3, 1),) * transactions)

    assert price_of(None, size, committee) > 0.9 * price_of(junk, size, committee)


# --- One node, f members that flood ----------------------------------------------------------


class FloodedNode:
    """An honest participant behind the simulator's processor, on a virtual clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.participant = Participant(SMALL.federation, ME, SMALL.signers[ME], SMALL.durable())
        let_sign(self.participant)
        self.handled: list[tuple[float, Event]] = []
        self.faults = 0
        ingress = Ingress(SMALL.federation, SMALL.scheme)
        world = ProcessorWorld(
            clock=lambda: self.clock.now,
            at=self.clock.at,
            wanted=self.participant.wanted,
            has_requested=self.participant.has_requested,
            handle=self._handle,
            refused=self._refused,
        )
        self.work: Counter[NodeId] = Counter()
        self.budget = self._counting()
        self.processor = Processor(ingress, self.budget, UNIT_S, world)
        self.offers = [SMALL.offer(peer, 1, SMALL.blob(peer)[0]) for peer in (3, 4, 5)]
        for offer in self.offers:
            self.participant.handle(Received(offer.author, offer), 0.0)
        for peer in range(1, SIZE):
            self.participant.handle(Connected(NodeId(peer)), 0.0)

    def _counting(self) -> Budget:
        """A budget that adds up what each peer has cost."""
        work = self.work

        class Counting(Budget):
            def _spend(self, peer: NodeId, work_of_frame: float, now: float) -> float:
                work[peer] += work_of_frame  # type: ignore[assignment]
                return super()._spend(peer, work_of_frame, now)

        return Counting(SMALL.federation.committee)

    def _handle(self, event: Event) -> None:
        self.participant.handle(event, self.clock.now)
        self.handled.append((self.clock.now, event))

    def _refused(self, _fault: object) -> None:
        self.faults += 1

    def flood(self, frame: Callable[[], bytes], *, per_s: int, seconds: float) -> None:
        """Each of the f members sends as many frames per second, on both lanes."""
        for i in range(int(per_s * seconds)):
            for peer in BYZANTINE:
                arrive = partial(self.processor.receive, peer, frame(), heavy=i % 2 == 0)
                self.clock.at(i / per_s, arrive)

    def delays_of_votes(self, *, every_s: float, seconds: float) -> list[float]:
        """An honest member votes regularly; returns how long each vote waited."""
        sent = [i * every_s for i in range(1, int(seconds / every_s))]
        for view, at in enumerate(sent, 1):
            frame = encode(SMALL.vote(GOOD, view, name("a block")))
            self.clock.at(at, partial(self.processor.receive, GOOD, frame, heavy=False))
        while self.clock.planned and self.clock.now < 2 * seconds:
            self.clock.step()
        handled = [at for at, event in self.handled if getattr(event, "peer", None) == GOOD]
        assert len(handled) == len(sent)
        return [after - before for before, after in zip(sent, handled, strict=True)]


def noise(rng: random.Random) -> Digest:
    return Digest(rng.randbytes(32))


def have_of(rng: random.Random) -> Have:
    manifest = SMALL.blob(rng.choice((3, 4, 5)))[0]
    chunks = len(manifest.chunks)
    return Have(manifest.digest, rng.randrange(1, 2**chunks).to_bytes((chunks + 7) // 8, "little"))


LONGEST = TRANSACTIONS_PER_MEMBER * SIZE
FLOODS: dict[str, Callable[[random.Random], bytes]] = {
    "Status of a far view": lambda rng: encode(Status(View(2**40 + rng.randrange(99)), View(9))),
    "Status of view 0": lambda _: encode(Status(View(0), View(0))),
    "BlockRequest": lambda rng: encode(BlockRequest(noise(rng), 0)),
    "ManifestRequest": lambda _: encode(ManifestRequest(SMALL.federation.initial)),
    "ChunkRequest": lambda rng: encode(ChunkRequest(noise(rng), 0)),
    "NotHeld": lambda _: encode(NotHeld(SMALL.blob(3)[0].digest)),
    "Have": lambda rng: encode(have_of(rng)),
    "StatementsRequest": lambda _: encode(StatementsRequest()),
    "ManifestAnswer": lambda rng: encode(ManifestAnswer(SMALL.blob(rng.randrange(9))[0])),
    "known Offer": lambda _: encode(SMALL.offer(3, 1, SMALL.blob(3)[0])),
    "old Certificates": lambda _: encode(Certificates(SMALL.genesis_qc, None)),
    "junk Gossip": lambda _: encode(Gossip((SMALL.agg(3, 2**40),) * LONGEST)),
    "junk Blocks": lambda _: encode(Blocks((SMALL.block((SMALL.agg(3, 2**40),) * LONGEST),))),
    "old Snapshot": lambda _: encode(SMALL.snapshot()),
    "unwanted Chunk": lambda rng: encode(Chunk(noise(rng), 0, memoryview(bytes(256)))),
    "proof of nothing": lambda _: encode(
        Evidence(SMALL.vote(ME, 1, name("a")), SMALL.vote(ME, 1, name("b")))
    ),
    "bytes that are no message": lambda rng: rng.randbytes(40),
    "another epoch": lambda _: encode(Status(View(0), View(0)), 7),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_f_members_that_flood_use_less_than_half_of_a_core(kind: str) -> None:
    """Each sends 5,000 frames a second, which would use more than a core. A quarter of a core
    follows from the rate; the rest is the burst after a quiet time."""
    node, rng, seconds = FloodedNode(), random.Random(1), 2.0
    frames = [FLOODS[kind](rng) for _ in range(16)]

    node.flood(lambda: rng.choice(frames), per_s=5000, seconds=seconds)
    delays = node.delays_of_votes(every_s=0.05, seconds=seconds)

    assert node.work[BYZANTINE[0]] * UNIT_S * len(BYZANTINE) < 0.5 * node.clock.now
    assert node.budget.wait_s(BYZANTINE[0], seconds) > 0, "more than it could pay for"
    assert max(delays) < 0.05
