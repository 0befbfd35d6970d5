"""The checker detects every contradictory signature and every invalid certificate."""

import pytest
from msgspec.structs import replace

from defl.ids import NO_DIGEST, NodeId, Round, View
from defl.messages import (
    QC,
    TC,
    Attestation,
    Block,
    Blocks,
    Certificates,
    Evidence,
    Gossip,
    Message,
    Offer,
    Proposal,
    Snapshot,
    StoreAck,
    Timeout,
)
from defl.output import EvidenceFound
from defl.sim import verdicts
from defl.sim.checks import Checker
from defl.sim.recount import REMEMBERED
from support.checker_inputs import (
    ALL_CLOSED,
    EPOCH,
    LIAR,
    MODEL,
    NOISE,
    ParticipantStub,
    checker_of_four,
    digest,
    failed,
    honest_blocks,
    qc,
    tc,
    upd,
    vote,
)


@pytest.fixture
def checker() -> Checker:
    return checker_of_four()


@pytest.fixture
def blocks() -> list[Block]:
    return honest_blocks()


GENESIS_QC = QC(View(0), digest("genesis"), b"", ())
OFFER = Offer(Round(1), NodeId(0), MODEL, NOISE)
ACK = StoreAck(Round(1), NodeId(2), digest("a"), NO_DIGEST, 256, NodeId(0), NOISE)

CONTRADICTIONS: dict[str, tuple[Message, Message]] = {
    "votes": (vote(5, digest("a")), vote(5, digest("b"))),
    "timeouts": (
        Timeout(EPOCH, View(9), GENESIS_QC, None, NodeId(0), NOISE),
        Timeout(EPOCH, View(9), qc(3, digest("a"), (0, 1, 2)), None, NodeId(0), NOISE),
    ),
    "offers": (OFFER, replace(OFFER, manifest=replace(MODEL, base=digest("a")))),
    "acks": (ACK, replace(ACK, digest=digest("b"))),
    "attestations": (
        Attestation(Round(3), digest("a"), NodeId(0), NOISE),
        Attestation(Round(3), digest("b"), NodeId(0), NOISE),
    ),
}


@pytest.mark.parametrize("kind", list(CONTRADICTIONS))
def test_two_statements_where_one_is_allowed_are_detected(checker: Checker, kind: str) -> None:
    first, second = CONTRADICTIONS[kind]
    checker.sent(NodeId(0), first)
    checker.sent(NodeId(0), first)
    assert failed(checker) == set(), "a repetition is no contradiction"
    checker.sent(NodeId(0), second)

    assert failed(checker) == {verdicts.NOTHING_SIGNED_TWICE}


def test_two_proposals_for_one_view_are_detected(checker: Checker, blocks: list[Block]) -> None:
    other = Block(replace(blocks[0].header, state_root=digest("another")), blocks[0].transactions)
    checker.sent(NodeId(0), Proposal(blocks[0], NOISE))
    checker.sent(NodeId(0), Proposal(other, NOISE))

    assert failed(checker) == {verdicts.NOTHING_SIGNED_TWICE}


def test_two_updates_of_one_author_are_detected_even_if_both_are_certified(
    checker: Checker,
) -> None:
    checker.sent(NodeId(0), Gossip((upd(1, 0, digest("a")),)))
    checker.sent(NodeId(0), Gossip((upd(1, 0, digest("b")),)))

    assert failed(checker) == {verdicts.NOTHING_SIGNED_TWICE, verdicts.ONE_UPDATE}


def test_a_statement_older_than_the_checkers_memory_is_detected(checker: Checker) -> None:
    for view in range(2, REMEMBERED + 10):
        checker.sent(NodeId(0), vote(view, digest("a")))
    assert failed(checker) == set()
    checker.sent(NodeId(0), vote(1, digest("a")))

    assert failed(checker) == {verdicts.NOTHING_SIGNED_TWICE}


def test_evidence_against_an_honest_node_is_detected(checker: Checker) -> None:
    participant = ParticipantStub(NodeId(0), ALL_CLOSED)
    of_liar = Evidence(vote(5, digest("a"), LIAR), vote(5, digest("b"), LIAR))
    checker.notice(NodeId(0), EvidenceFound(of_liar), 1.0, participant)
    assert failed(checker) == set()
    of_honest = Evidence(vote(5, digest("a"), 1), vote(5, digest("b"), 1))
    checker.notice(NodeId(0), EvidenceFound(of_honest), 1.0, participant)

    assert failed(checker) == {verdicts.NOTHING_SIGNED_TWICE}


A = digest("a")
GOOD_QC = qc(3, A, (0, 1, 2))
BAD_CERTIFICATES: dict[str, QC | TC] = {
    "a QC of too few": qc(3, A, (0, 1)),
    "a QC with one signature thrice": qc(3, A, (0,), signatures=3),
    "a QC in others' names": replace(qc(3, A, (0,), signatures=3), signers=b"\x07"),
    "a QC for another block": replace(GOOD_QC, block=digest("b")),
    "a QC of another view": replace(GOOD_QC, view=View(4)),
    "a QC of strangers": replace(GOOD_QC, signers=b"\x70"),
    "a TC of too few": tc(9, (3, 3), GOOD_QC),
    "a TC without its maximum": replace(tc(9, (0, 0, 3), GENESIS_QC)),
    "a TC of another view": replace(tc(9, (3, 3, 3), GOOD_QC), view=View(10)),
    "a TC that leaves views out": replace(tc(9, (3, 3, 3), GOOD_QC), high_views=(View(3),)),
    "a TC that carries a bad QC": tc(9, (3, 3, 3), qc(3, A, (0, 1))),
}


@pytest.mark.parametrize("case", list(BAD_CERTIFICATES))
def test_a_certificate_without_q_distinct_members_is_detected(checker: Checker, case: str) -> None:
    checker.sent(NodeId(0), Certificates(GOOD_QC, tc(9, (0, 3, 3), GOOD_QC)))
    assert failed(checker) == set()
    bad = BAD_CERTIFICATES[case]
    carried = Certificates(bad, None) if isinstance(bad, QC) else Certificates(GOOD_QC, bad)
    checker.sent(NodeId(0), carried)

    strangers = {verdicts.MEMBERS_ONLY} if case == "a QC of strangers" else set()
    assert failed(checker) == {verdicts.CERTIFICATES} | strangers


BAD_QC = BAD_CERTIFICATES["a QC of too few"]
BAD_TC = BAD_CERTIFICATES["a TC of too few"]
BAD_UPD = upd(1, 2, A, ackers=(0, 1))


@pytest.mark.parametrize(
    "place",
    [
        lambda _: Timeout(EPOCH, View(9), BAD_QC, None, NodeId(0), NOISE),
        lambda _: Timeout(EPOCH, View(9), GOOD_QC, BAD_TC, NodeId(0), NOISE),
        lambda block: Proposal(Block(replace(block.header, qc=BAD_QC), ()), NOISE),
        lambda block: Proposal(Block(replace(block.header, tc=BAD_TC), ()), NOISE),
        lambda block: Proposal(Block(block.header, (BAD_UPD,)), NOISE),
        lambda block: Blocks((block, Block(replace(block.header, qc=BAD_QC), ()))),
        lambda block: Snapshot(block.header, b"", block.header, BAD_QC),
        lambda block: Snapshot(block.header, b"", replace(block.header, qc=BAD_QC), GOOD_QC),
        lambda _: Gossip((BAD_UPD,)),
        lambda _: Evidence(upd(1, 2, A), BAD_UPD),
    ],
)
def test_bad_certificates_are_detected_in_every_message_that_carries_them(
    checker: Checker, blocks: list[Block], place: object
) -> None:
    checker.sent(NodeId(0), place(blocks[-1]))

    assert failed(checker) == {verdicts.CERTIFICATES}
