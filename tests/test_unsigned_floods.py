"""Floods of well-formed frames that cost a node time without any signature check.

Every message has a price, all frames of a peer are paid from its one budget, and a peer over its
budget is read more slowly. So f members that flood use a bounded share of a node's processor, and
honest members never wait. CPU time is virtual: 0.11 ms for one unit of work.
"""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from defl.budget import PRICES, Budget, price_of, verifications_at_once, verifications_per_s
from defl.committee import Committee
from defl.consensus.answers import (
    BLOCK_ANSWERS_PER_PERIOD_MAX,
    SNAPSHOTS_PER_PERIOD_MAX,
    STATUSES_PER_PERIOD_MAX,
)
from defl.crypto import Signer
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
    Snapshot,
    StatementsRequest,
    Status,
)
from defl.output import Connected, Envelope, Event, Output, Received
from defl.participant import Participant
from defl.sim.byzantine import KINDS
from defl.sim.byzantine.liar import Liar
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions, Partition
from defl.sim.processor import Pause, Processor, ProcessorWorld, Turn, VirtualLink
from defl.sim.scenario import cluster_of
from defl.sim.sim_node import Wrap
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
    assert dear > 3 * cheap
    assert price_of(Blocks((block,)), size, committee) == dear
    assert price_of(SMALL.proposal(block), size, committee) == dear


def test_a_frame_that_is_a_fault_costs_more_than_any_reading_of_its_bytes() -> None:
    committee, size = committee_of(SIZE), 10**6
    transactions = size // len(encode(SMALL.agg(3, 1)))
    junk = Gossip((SMALL.agg(3, 1),) * transactions)

    assert price_of(None, size, committee) > 0.9 * price_of(junk, size, committee)


# --- One node, f members that flood ----------------------------------------------------------


def counting_budget(committee: Committee, work: Counter[NodeId]) -> Budget:
    """A budget that adds up what each peer has cost."""

    class Counting(Budget):
        def _spend(self, peer: NodeId, amount: float, now: float) -> float:
            work[peer] += amount  # type: ignore[assignment]
            return super()._spend(peer, amount, now)

    return Counting(committee)


class Measured(Processor):
    """A processor that adds up the seconds that it worked for each peer."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.busy_s: Counter[NodeId] = Counter()

    def _do(self, link: VirtualLink, step: Pause | Turn) -> None:
        if isinstance(step, Turn):
            self.busy_s[link.peer] += step.seconds  # type: ignore[assignment]
        super()._do(link, step)


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
        self.budget = counting_budget(SMALL.federation.committee, self.work)
        self.processor = Measured(ingress, self.budget, UNIT_S, world)
        self.offers = [SMALL.offer(peer, 1, SMALL.blob(peer)[0]) for peer in (3, 4, 5)]
        for offer in self.offers:
            self.participant.handle(Received(offer.author, offer), 0.0)
        for peer in range(1, SIZE):
            self.participant.handle(Connected(NodeId(peer)), 0.0)

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
        sent = [i * every_s for i in range(1, int(seconds / every_s) - 1)]
        for view, at in enumerate(sent, 1):
            frame = encode(SMALL.vote(GOOD, view, name("a block")))
            self.clock.at(at, partial(self.processor.receive, GOOD, frame, heavy=False))
        while self.clock.now < seconds:
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
    """Each sends 5,000 frames a second, which would use a whole core. A quarter of a core follows
    from the rate; the rest is the burst after a quiet time."""
    node, seconds = FloodedNode(), 2.0
    rng = random.Random(1)  # noqa: S311
    frames = [FLOODS[kind](rng) for _ in range(16)]

    node.flood(lambda: rng.choice(frames), per_s=5000, seconds=seconds)
    delays = node.delays_of_votes(every_s=0.05, seconds=seconds)

    assert sum(node.processor.busy_s[peer] for peer in BYZANTINE) < 0.5 * node.clock.now
    assert any(link.frames for link in node.processor._links.values()), "more than was read"
    assert max(delays) < 0.05


def test_frames_beyond_a_budget_are_late_and_not_lost() -> None:
    node, frame = FloodedNode(), encode(StatementsRequest())
    node.flood(lambda: frame, per_s=3000, seconds=1.0)
    while node.clock.planned:
        node.clock.step()

    sent = 3000 * len(BYZANTINE)
    assert len(node.handled) == sent
    assert node.clock.now > 2.0


@pytest.mark.parametrize("kind", ["bytes that are no message", "another epoch"])
def test_frames_that_are_not_read_are_paid_for(kind: str) -> None:
    node = FloodedNode()
    frame = FLOODS[kind](random.Random(1))  # noqa: S311
    for _ in range(3 * verifications_at_once(SMALL.federation.committee)):
        node.processor.receive(BYZANTINE[0], frame, heavy=False)
    while node.clock.planned:
        node.clock.step()

    assert node.clock.now > 1.0


def test_a_requested_chunk_is_free_and_any_other_is_not() -> None:
    """A source that answers many requests for small chunks must not wait with its votes."""
    node = FloodedNode()
    manifest, payload = SMALL.blob(3)
    requests = node.participant.pool._transfer._fetches[manifest.digest].asked
    index, source = next((i, source) for i, source in requests.items() if i >= 0)
    size = SMALL.federation.chunk_bytes
    data = memoryview(payload)[index * size : (index + 1) * size]
    frame = encode(Chunk(manifest.digest, index, data))
    other = next(peer for peer in BYZANTINE if peer != source)

    false = encode(Chunk(manifest.digest, index, memoryview(bytes(len(data)))))
    paid = []
    for peer, sent in ((other, false), (source, frame), (source, frame)):
        before = node.work[peer]
        node.processor.receive(peer, sent, heavy=True)
        while node.clock.planned:
            node.clock.step()
        paid.append(node.work[peer] > before)
    assert paid == [True, False, True], "not requested of it, requested, requested no longer"


# --- Answers ---------------------------------------------------------------------------------


def answers_to(message: Message, times: int, now: float = 50.0) -> list[type[Message]]:
    """Return the answers of a node with committed blocks to a member that repeats a message."""
    cluster = cluster_of(4, rounds=3, seed=1)
    cluster.run()
    participant = cluster.nodes[0].behaviour.participant
    if isinstance(message, BlockRequest):
        message = BlockRequest(participant.replica.head.id, message.height)
    answers = []
    for _ in range(times):
        answers += participant.handle(Received(NodeId(1), message), cluster.now + now).send
    return [type(answer.message) for answer in answers]


@pytest.mark.parametrize(
    ("question", "answer", "most"),
    [
        (Status(View(2**40), View(2**40)), Status, STATUSES_PER_PERIOD_MAX),
        (BlockRequest(name("any"), 0), Snapshot, SNAPSHOTS_PER_PERIOD_MAX),
        (BlockRequest(name("any"), 2**40), Blocks, BLOCK_ANSWERS_PER_PERIOD_MAX),
    ],
    ids=["Status", "Snapshot", "Blocks"],
)
def test_a_small_question_gets_a_few_answers_per_period(
    question: Message, answer: type[Message], most: int
) -> None:
    answers = answers_to(question, 100)

    assert answers.count(answer) <= most
    if answer is not Blocks:
        assert answers.count(answer) == most


# --- The whole federation --------------------------------------------------------------------


class Spammer(Liar):
    """Takes no part, and sends the same kind of frame to all, all the time."""

    def __init__(
        self,
        make: Callable[[Liar], Message],
        per_batch: int,
        participant: Participant,
        signer: Signer,
        rng: random.Random,
    ) -> None:
        super().__init__(participant, signer, rng)
        self._make = make
        self._per_batch = per_batch
        self._next_at = 0.0

    def handle(self, event: Event, now: float) -> Output:
        output = self.participant.handle(event, now)
        flood: tuple[Envelope, ...] = ()
        if now >= self._next_at:
            self._next_at = now + BATCH_S
            flood = (Envelope(None, self._make(self)),) * self._per_batch
        return replace(output, send=flood, wake_at=self._next_at)


BATCH_S = 0.02
REQUESTS_PER_BATCH = 10


def one_round(wrap: Wrap) -> tuple[float, float]:
    """Return its duration, and the share of an honest node's time that f such members use."""
    conditions = Conditions(signature_s=2 * UNIT_S, work_s=0.001, latency_s=0.005, jitter_s=0.005)
    byzantine = dict.fromkeys(BYZANTINE, wrap)
    cluster = cluster_of(SIZE, rounds=1, seed=1, conditions=conditions, byzantine=byzantine)
    for node in cluster.honest:
        node.processor = Measured(
            node.ingress, node.processor.budget, 2 * UNIT_S, node.processor._world
        )
    cluster.run(until=lambda: cluster.rounds_closed == 1 or cluster.now > 20)
    assert cluster.checker.violations == []
    processors = [node.processor for node in cluster.honest]
    busy_s = [sum(p.busy_s[peer] for peer in BYZANTINE) for p in processors]  # type: ignore[attr-defined]
    return cluster.now, max(busy_s) / cluster.now


def test_a_round_takes_less_than_twice_as_long_with_f_floods_as_with_f_silent_members() -> None:
    """The flood is requests for manifests; the machine is half as fast as usual."""
    silent_s, _ = one_round(KINDS["silent"])
    flood = partial(
        Spammer, lambda liar: ManifestRequest(liar._federation.initial), REQUESTS_PER_BATCH
    )
    flooded_s, share = one_round(flood)

    assert flooded_s < 2 * silent_s
    # The long-run rate is half of this slow machine, and the burst of a short round comes on top.
    assert share < 0.8


# --- Honest members --------------------------------------------------------------------------


def apart(alone: int, size: int) -> Partition:
    others = frozenset(NodeId(i) for i in range(size) if i != alone)
    return Partition((frozenset({NodeId(alone)}), others), 1.0, 8.0)


HONEST: dict[str, tuple[int, int, dict[str, int], Conditions]] = {
    "a LAN with the smallest chunks": (
        4, 1, {"values": 20_000, "chunk_bytes": 256},
        Conditions(latency_s=0.0002, jitter_s=0.0, work_s=0.05, bandwidth_bytes_s=1e9),
    ),
    "a slow network with the smallest chunks": (
        10, 1, {"values": 2000, "chunk_bytes": 256},
        Conditions(latency_s=0.1, bandwidth_bytes_s=2e4, work_s=0.2),
    ),
    "a member that catches up": (
        7, 5, {"values": 1000, "chunk_bytes": 256},
        Conditions(latency_s=0.01, work_s=0.2, partitions=(apart(0, 7),)),
    ),
    "31 members": (31, 1, {}, Conditions(latency_s=0.001, jitter_s=0.001, work_s=0.05)),
    "100 members": (100, 1, {}, Conditions(latency_s=0.001, jitter_s=0.001, work_s=0.05)),
}  # fmt: skip
SLOW = ("31 members", "100 members")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in HONEST]
)
def test_an_honest_member_uses_at_most_half_of_its_budget(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, rounds, facts, conditions = HONEST[case]
    least = [1.0]
    take = Budget._spend

    def spend(budget: Budget, peer: NodeId, work: float, now: float) -> float:
        wait_s = take(budget, peer, work, now)
        bucket = budget._buckets[peer]
        least.append(bucket._tokens / bucket._burst)
        return wait_s

    monkeypatch.setattr(Budget, "_spend", spend)
    cluster: Cluster = cluster_of(size, rounds=rounds, seed=3, conditions=conditions, **facts)
    cluster.run(until=lambda: cluster.rounds_closed == rounds or cluster.now > 300)

    assert cluster.rounds_closed == rounds
    assert min(least) > 0.5
