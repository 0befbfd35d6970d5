"""A member that makes a real node verify as much as the rules allow.

The tests count signature checks instead of timing them. Member 2 is a real node over real
connections; members 0 and 1 are transports that the test controls. Member 1 is Byzantine.
"""

import asyncio
from pathlib import Path
from threading import current_thread
from typing import ClassVar

import pytest
from msgspec.structs import replace

import defl.budget
import defl.node.epoch_parts
from defl.budget import price_of, verifications_at_once, verifications_per_s
from defl.crypto import Ed25519Scheme
from defl.fields import bitmap_of
from defl.ids import Digest, NodeId, Round, View, digest_of
from defl.lab.experiments.processes import Nodes
from defl.messages import (
    Agg,
    Gossip,
    Message,
    StatementsRequest,
    Upd,
    Vote,
    ack_statement,
    vote_statement,
)
from defl.node.net.transport import Lane
from defl.node.setup.config import read_identity
from defl.node.setup.identity import Identity
from defl.wire import encode
from support.in_process_node import InProcessNode, Member, until

GOOD, BAD, NODE = NodeId(0), NodeId(1), NodeId(2)


class Counting:
    """Counts the signatures that are really checked, and records the threads."""

    checked = 0
    threads: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self._scheme = Ed25519Scheme()

    def verify(self, public_key: bytes, message: Digest, signature: bytes) -> bool:
        Counting.checked += 1
        Counting.threads.append(current_thread().name)
        return self._scheme.verify(public_key, message, signature)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, ...]:
    monkeypatch.setenv("DEFL_NODE", "2")
    monkeypatch.setattr(defl.node.epoch_parts, "Ed25519Scheme", Counting)
    monkeypatch.setattr(Counting, "checked", 0)
    monkeypatch.setattr(Counting, "threads", [])
    return tuple(Nodes(tmp_path / "federation", 4, 3).local.nodes)


def forged_vote(view: int) -> Vote:
    """A vote within the window that only a signature check can reject."""
    return Vote(0, View(view), digest_of(b"a block"), BAD, bytes(64), View(0), View(0))


def true_vote(member: Member, identity: Identity, view: int) -> Vote:
    block = digest_of(b"a block")
    signature = identity.signer.sign(vote_statement(member.federation.chain, 0, View(view), block))
    return Vote(0, View(view), block, member.me, signature, View(0), View(0))


def test_a_member_over_its_budget_waits_without_delaying_others(
    folders: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its messages is lost: every forgery is counted in the end.

    The budget is far below what even a busy machine can check, so only the budget can delay.
    """
    per_s = 20
    monkeypatch.setattr(defl.budget, "LIARS_VERIFICATIONS_PER_S", per_s)

    async def scenario() -> None:
        here, bad, good = InProcessNode(folders[NODE]), Member(folders[BAD]), Member(folders[GOOD])
        node, committee = here.node, bad.federation.committee
        clock = asyncio.get_running_loop().time
        async with here.running(), bad.connected(NODE), good.connected(NODE):
            began = clock()
            burst = verifications_at_once(committee)
            price = 1 + 2 * price_of(None, 200, committee)  # its signature, and at most a fault
            frames = burst + per_s
            for i in range(frames):
                bad.send(NODE, forged_vote(1 + i % 60))
            faults = node.measures.peer_faults
            await until(lambda: faults[bad.name] >= burst / price)
            good.send(NODE, true_vote(good, read_identity(folders[GOOD], "node-0"), 1))
            tally = node.participant.replica._tally
            await until(lambda: tally.vote(View(1), GOOD))
            assert faults[bad.name] < frames, "the bad member is still waiting"
            while faults[bad.name] < frames:
                checked = Counting.checked
                assert checked <= 1 + burst + verifications_per_s(committee) * (clock() - began)
                await asyncio.sleep(0.01)
            assert Counting.checked == frames + 1
            assert tally.vote(View(1), BAD) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["question", "fault"])
def test_frames_without_signatures_are_paid_for_too(
    folders: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A real node reads them no faster than the budget allows, on both lanes together."""
    per_s = 40
    monkeypatch.setattr(defl.budget, "LIARS_VERIFICATIONS_PER_S", per_s)
    frame = encode(StatementsRequest()) if kind == "question" else b"not a message"

    async def scenario() -> None:
        here, bad = InProcessNode(folders[NODE]), Member(folders[BAD])
        node, committee = here.node, bad.federation.committee
        clock = asyncio.get_running_loop().time

        def frames_read() -> int:
            return sum(node.transport.stats.traffic[BAD, lane].frames_in for lane in Lane)

        async with here.running(), bad.connected(NODE):
            before, began = frames_read(), clock()
            burst = verifications_at_once(committee)
            frames = 4 * burst
            for _ in range(frames // 2):
                for lane in Lane:
                    assert bad.transport.send(NODE, frame, lane)
            await until(lambda: frames_read() - before >= burst)
            while clock() < began + 1.0:
                await asyncio.sleep(0.01)
                most = (burst + per_s * (clock() - began)) / 0.5 + 2 * len(Lane)
                assert frames_read() - before <= most
            assert frames_read() - before < frames, "most of them wait"

    asyncio.run(scenario())


def test_expensive_frames_without_news_cost_no_signature_checks(
    folders: tuple[Path, ...],
) -> None:
    """AGGs for far-off rounds, validly signed, and its own update with many sets of ackers."""

    async def scenario() -> None:
        here, bad = InProcessNode(folders[NODE]), Member(folders[BAD])
        node = here.node
        signer = read_identity(folders[BAD], "node-1").signer
        chain = bad.federation.chain

        def agg(round_: int) -> Agg:
            unsigned = Agg(Round(round_), BAD, b"")
            return Agg(Round(round_), BAD, signer.sign(unsigned.statement(chain, 0)))

        def upd(round_: int, ackers: tuple[int, ...]) -> Upd:
            bitmap = bitmap_of(map(NodeId, ackers), 4)
            digest, base = digest_of(b"an update"), bad.federation.initial
            acks = (bytes(64),) * len(ackers)
            return Upd(Round(round_), BAD, digest, 400, base, bitmap, acks, bytes(64))

        def frames_received() -> int:
            return node.transport.stats.traffic[BAD, Lane.CONTROL].frames_in

        async def deliver(message: Message) -> None:
            before = frames_received()
            bad.send(NODE, message)
            await until(lambda: frames_received() > before)

        async with here.running(), bad.connected(NODE):
            for start in range(10**6, 10**6 + 40 * 16, 16):
                await deliver(Gossip(tuple(agg(start + i) for i in range(16))))
            for ackers in ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)):
                await deliver(Gossip(tuple(upd(round_, ackers) for round_ in (7, 8, 9))))
            await deliver(Gossip((agg(1),)))
            replica = node.participant.replica
            await until(lambda: replica.stored["transactions"] == 1)
            assert Counting.checked == 1, "only the AGG for the open round"
            assert node.measures.peer_faults == {}

    asyncio.run(scenario())


def test_many_signatures_are_checked_off_the_loop_and_few_on_it(
    folders: tuple[Path, ...],
) -> None:
    async def scenario() -> None:
        here, bad = InProcessNode(folders[NODE]), Member(folders[BAD])
        chain, base = bad.federation.chain, bad.federation.initial
        signers = [read_identity(folders[i], f"node-{i}").signer for i in (0, 1, 3)]

        def upd(round_: int) -> Upd:
            digest = digest_of(b"an update")
            stored = ack_statement(chain, 0, Round(round_), BAD, digest, base, 400)
            acks = tuple(signer.sign(stored) for signer in signers)
            ackers = bitmap_of(map(NodeId, (0, 1, 3)), 4)
            unsigned = Upd(Round(round_), BAD, digest, 400, base, ackers, acks, b"")
            return replace(unsigned, signature=signers[1].sign(unsigned.statement(chain, 0)))

        async with here.running(), bad.connected(NODE):
            stored = here.node.participant.replica.stored
            bad.send(NODE, Gossip((upd(1), upd(2))))
            await until(lambda: here.node.participant.replica.stored["transactions"] == 2)
            beside, Counting.threads = Counting.threads, []
            bad.send(NODE, true_vote(bad, read_identity(folders[BAD], "node-1"), 1))
            await until(lambda: Counting.threads)

        assert stored["transactions"] == 0
        assert beside == ["defl-verifying_0"] * 8
        assert Counting.threads == ["MainThread"]

    asyncio.run(scenario())
