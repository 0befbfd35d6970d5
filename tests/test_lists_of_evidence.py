"""Lists of signatures in messages: foreign ones, old ones, and one of these among good ones.

A Byzantine peer sends a message whose list does not prove what it says. A node in its second epoch
refuses or ignores it, is as it was before, and acts on the genuine message that comes next.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from defl.errors import PeerFault
from defl.ids import NodeId, Round
from defl.messages import (
    QC,
    TC,
    Blocks,
    Certificates,
    Evidence,
    Gossip,
    Handover,
    Message,
    Proposal,
    Timeout,
    Upd,
    Vote,
)
from defl.participant import Participant
from defl.recall import NOTHING_SEEN
from support.builders import Small, name, nodes
from support.one_node import OneNode

# The node is none of the first five, a quorum that signs all certificates.
ME, BYZANTINE, HONEST = nodes(6, 3, 4)
OLD = Small(7, real=False)  # the same keys one epoch earlier
ELSEWHERE = Small(7, real=False, rounds=9)  # the same keys in another federation
ROUND = 2  # the open one


def in_second_epoch() -> OneNode:
    node = OneNode(OLD, ME)
    node.receive(HONEST, OLD.handover())
    assert node.participant.epoch == 1
    node.small = OLD.in_epoch_of(node.participant)
    return node


NOW = in_second_epoch().small
FIRST = NOW.block()
SECOND = NOW.block(view=2, parent=FIRST)


def memory(participant: Participant) -> tuple[Any, ...]:
    """All that a message of these kinds can change."""
    replica = participant.replica
    return (
        participant.epoch,
        participant.state,
        replica.record,
        replica.view,
        replica.head.id,
        replica.muted,
        participant.stored,
        participant.evidence,
    )


# --- Lists: the genuine one, and what a Byzantine member puts in its place ---------------------


def qc_lists(block: Any = FIRST) -> dict[str, QC]:
    view = block.view
    return {
        "genuine": NOW.qc(view, block.id),
        "another federation's": ELSEWHERE.qc(view, block.id),
        "of the previous epoch": OLD.qc(view, block.id),
        "of another view": NOW.qc(view + 1, block.id),
        "for another block": NOW.qc(view, name("another")),
        "other members'": NOW.qc(view, block.id, nodes(1, 2, 3, 4, 5)),
    }


def tc_lists() -> dict[str, TC]:
    genuine = NOW.tc(3)
    moved = NOW.tc(3, NOW.qc(1, FIRST.id))
    return {
        "genuine": genuine,
        "another federation's": ELSEWHERE.tc(3),
        "of the previous epoch": OLD.tc(3),
        "of an earlier view": NOW.tc(2),
        "of a newer QC": moved,
        "other members'": replace(genuine, signatures=genuine.signatures[::-1]),
    }


def upd_lists() -> dict[str, Upd]:
    digest, author = name("update"), BYZANTINE
    other_author = NOW.upd(2, ROUND, digest=digest)
    return {
        "genuine": NOW.upd(author, ROUND, digest=digest),
        "another federation's": ELSEWHERE.upd(author, ROUND, digest=digest),
        "of the previous epoch": OLD.upd(author, ROUND, digest=digest),
        "of an earlier round": NOW.upd(author, ROUND - 1, digest=digest),
        "for another update": NOW.upd(author, ROUND, digest=name("another")),
        "of another author's": other_author,
        "other members'": NOW.upd(author, ROUND, digest=digest, ackers=nodes(1, 2, 3, 4, 5)),
    }


def swapped(genuine: Any, bad: Any, field: str, *, mixed: bool) -> Any:
    """The genuine certificate with the signatures of another; `mixed`: with one of them."""
    good_list, bad_list = getattr(genuine, field), getattr(bad, field)
    place = next(i for i, (a, b) in enumerate(zip(good_list, bad_list, strict=True)) if a != b)
    one = (*good_list[:place], bad_list[place], *good_list[place + 1 :])
    return replace(genuine, **{field: one if mixed else bad_list})


# --- Messages that carry them -------------------------------------------------------------------


def timeout(view: int, high_qc: QC, tc: TC | None = None) -> Message:
    return NOW.timeout(BYZANTINE, view, high_qc, tc)


def proposal(view: int, **fields: Any) -> Message:
    block = NOW.block(fields.pop("transactions", ()), view=view, **fields)
    return NOW.proposal(block)


QC_CARRIERS: dict[str, Callable[[QC], Message]] = {
    "Certificates": lambda qc: Certificates(qc, None),
    "Timeout": lambda qc: timeout(2, qc),
    "Proposal": lambda qc: proposal(2, parent=FIRST, qc=qc),
    "TC": lambda qc: Certificates(NOW.genesis_qc, NOW.tc(2, qc)),
    "Blocks": lambda qc: Blocks((replace(SECOND, header=replace(SECOND.header, qc=qc)),)),
}
TC_CARRIERS: dict[str, Callable[[TC], Message]] = {
    "Certificates": lambda tc: Certificates(NOW.genesis_qc, tc),
    "Certificates with a good QC": lambda tc: Certificates(NOW.qc(1, FIRST.id), tc),
    "Timeout": lambda tc: timeout(4, NOW.genesis_qc, tc),
    "Proposal": lambda tc: proposal(4, tc=tc),
}
UPD_CARRIERS: dict[str, Callable[[Upd], Message]] = {
    "Gossip": lambda upd: Gossip((upd,)),
    "Gossip with others": lambda upd: Gossip((NOW.agg(2, ROUND), upd, NOW.upd(4, ROUND))),
    "Proposal": lambda upd: proposal(1, transactions=(NOW.agg(2, ROUND), upd)),
    "Evidence": lambda upd: Evidence(upd, NOW.upd(BYZANTINE, ROUND), epoch=1),
}


def sender_of(message: Message, otherwise: NodeId) -> NodeId:
    """A proposal comes from its view's leader and a timeout from its author."""
    match message:
        case Proposal(block=block):
            return block.header.author
        case Timeout(author=author):
            return author
    return otherwise


def prepare(node: OneNode, carrier: str, genuine: Message) -> None:
    if carrier == "Blocks":  # the node misses exactly this block
        assert isinstance(genuine, Blocks)
        (block,) = genuine.blocks
        node.receive(HONEST, Certificates(NOW.qc(block.view, block.id), None))


def assert_harmless(node: OneNode, bad: Message, genuine: Message) -> None:
    before = memory(node.participant)
    with suppress(PeerFault):
        node.receive(sender_of(bad, BYZANTINE), bad)
    assert memory(node.participant) == before, "the whole message is refused or ignored"
    node.receive(sender_of(genuine, HONEST), genuine)
    assert memory(node.participant) != before, "the genuine message takes effect"
    assert node.participant.replica.observing is None


CASES = [
    (kind, carrier, flavour)
    for kind, carriers, lists in (
        ("QC", QC_CARRIERS, qc_lists()),
        ("TC", TC_CARRIERS, tc_lists()),
        ("UPD", UPD_CARRIERS, upd_lists()),
    )
    for carrier in carriers
    for flavour in lists
    if flavour != "genuine"
]


@pytest.mark.parametrize("mixed", [False, True], ids=["all", "one"])
@pytest.mark.parametrize(("kind", "carrier", "flavour"), CASES)
def test_a_certificate_with_signatures_of_something_else_moves_nothing(
    kind: str, carrier: str, flavour: str, mixed: bool
) -> None:
    carriers, lists, field = {
        "QC": (QC_CARRIERS, qc_lists(), "signatures"),
        "TC": (TC_CARRIERS, tc_lists(), "signatures"),
        "UPD": (UPD_CARRIERS, upd_lists(), "acks"),
    }[kind]
    genuine = carriers[carrier](lists["genuine"])
    bad = carriers[carrier](swapped(lists["genuine"], lists[flavour], field, mixed=mixed))
    node = in_second_epoch()
    prepare(node, carrier, genuine)

    assert_harmless(node, bad, genuine)


def swapped_proof(of: Callable[[Small], Handover]) -> list[Handover]:
    """A handover of this epoch with the proofs of others."""
    genuine = of(NOW).snapshot
    lists = [of(other).snapshot.proof_qc.signatures for other in (OLD, ELSEWHERE)]
    lists.append((*genuine.proof_qc.signatures[:-1], lists[0][-1]))
    return [
        Handover(replace(genuine, proof_qc=replace(genuine.proof_qc, signatures=signatures)))
        for signatures in lists
    ]


@pytest.mark.parametrize("place", range(3), ids=["old", "foreign", "mixed"])
def test_a_handover_proven_by_signatures_of_something_else_ends_no_epoch(place: int) -> None:
    assert_harmless(in_second_epoch(), swapped_proof(Small.handover)[place], NOW.handover())


@pytest.mark.parametrize("other", [OLD, ELSEWHERE], ids=["old", "foreign"])
def test_the_genuine_end_of_something_else_ends_no_epoch(other: Small) -> None:
    assert_harmless(in_second_epoch(), other.handover(), NOW.handover())


@pytest.mark.parametrize("place", range(3), ids=["old", "foreign", "mixed"])
def test_a_snapshot_proven_by_signatures_of_something_else_is_not_installed(place: int) -> None:
    node = in_second_epoch()
    node.receive(HONEST, Certificates(NOW.qc(9, name("far ahead")), None))
    bad = swapped_proof(lambda small: Handover(small.snapshot()))[place].snapshot

    assert_harmless(node, bad, NOW.snapshot())


# --- Pairs, and lists of independent parts -------------------------------------------------------


def vote(small: Small, view: int, text: str, author: int = BYZANTINE) -> Vote:
    return small.vote(author, view, name(text))


GENUINE_PAIR = Evidence(vote(NOW, 5, "a"), vote(NOW, 5, "b"), epoch=1)


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(vote(NOW, 5, "b", HONEST), id="another member's"),
        pytest.param(vote(NOW, 4, "b"), id="of an earlier view"),
        pytest.param(replace(vote(OLD, 5, "b"), epoch=1), id="of the previous epoch"),
        pytest.param(vote(OLD, 5, "b"), id="openly of the previous epoch"),
        pytest.param(replace(vote(ELSEWHERE, 5, "b"), epoch=1), id="another federation's"),
        pytest.param(vote(NOW, 5, "a"), id="the same"),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_genuine_statement_beside_another_is_no_evidence(second: Vote, reverse: bool) -> None:
    pair = (second, GENUINE_PAIR.first) if reverse else (GENUINE_PAIR.first, second)

    assert_harmless(in_second_epoch(), Evidence(*pair, epoch=1), GENUINE_PAIR)


def test_evidence_of_the_epoch_before_accuses_nobody_in_this_one() -> None:
    """The evidence is genuine, but another member may have the key by now."""
    old = Evidence(vote(OLD, 5, "a"), vote(OLD, 5, "b"))

    for bad in (old, replace(old, epoch=1)):
        assert_harmless(in_second_epoch(), bad, GENUINE_PAIR)


def transactions_of(node: OneNode) -> int:
    return node.participant.stored["transactions"]


def test_transactions_of_closed_rounds_and_old_epochs_do_not_displace_those_beside_them() -> None:
    """A gossip with genuine transactions that are too old: they are ignored, the others count."""
    node = in_second_epoch()
    before = transactions_of(node)
    old = (NOW.agg(2, ROUND - 1), NOW.upd(4, ROUND - 1))
    node.receive(BYZANTINE, Gossip((*old, NOW.agg(2, ROUND), NOW.upd(4, ROUND))))
    assert transactions_of(node) == before + 2

    stale = OLD.agg(5, ROUND)  # of this round, but signed in the previous epoch
    node.refused(BYZANTINE, Gossip((NOW.agg(6, ROUND), stale)))
    assert transactions_of(node) == before + 2
    node.receive(HONEST, Gossip((NOW.agg(5, ROUND), NOW.agg(6, ROUND))))
    assert transactions_of(node) == before + 4


def test_only_the_requested_blocks_of_an_answer_are_taken() -> None:
    """A block of another chain, one that was not requested, or one that is not next in turn: what
    follows it in the answer is ignored too."""
    node = in_second_epoch()
    stranger = ELSEWHERE.block()
    unasked = NOW.block((NOW.agg(2, ROUND),))
    node.receive(HONEST, Certificates(NOW.qc(2, SECOND.id), None))
    kept = node.participant.stored["blocks"]
    for blocks in ((stranger,), (unasked, SECOND), (FIRST,)):
        with suppress(PeerFault):
            node.receive(BYZANTINE, Blocks(blocks))
        assert node.participant.stored["blocks"] == kept

    node.receive(BYZANTINE, Blocks((SECOND, stranger, unasked)))
    assert node.participant.stored["blocks"] == kept + 1
    node.receive(HONEST, Blocks((FIRST,)))
    assert node.participant.stored["blocks"] == kept + 2


# --- Answers to a node that has just started ----------------------------------------------------


def asking() -> OneNode:
    """A node that needs two more answers before it may sign."""
    node = OneNode(OLD, ME)
    node.participant = Participant(OLD.federation, ME, OLD.signers[ME], OLD.durable())
    for peer in (0, 2):
        node.receive(peer, NOTHING_SEEN)
    return node


def own_ack(small: Small, round_: int = 1) -> Any:
    return small.ack(ME, small.offer(BYZANTINE, round_, small.blob(1)[0]))


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(own_ack(ELSEWHERE), id="another federation's"),
        pytest.param(OLD.ack(5, OLD.offer(BYZANTINE, 1, OLD.blob(1)[0])), id="another member's"),
        pytest.param(replace(own_ack(OLD), round=Round(2)), id="moved to another round"),
    ],
)
@pytest.mark.parametrize("mixed", [False, True], ids=["all", "one"])
def test_acks_that_are_not_this_nodes_make_no_observer(bad: Any, mixed: bool) -> None:
    node = asking()
    own_vote = None if not mixed else OLD.vote(ME, 3, name("block"))
    answer = replace(NOTHING_SEEN, vote=own_vote, acks=(bad,))
    with suppress(PeerFault):
        node.receive(BYZANTINE, answer)
    assert node.participant.replica.observing is None
    assert node.participant.replica.muted, "the answer does not count"

    for peer in (HONEST, NodeId(5)):
        node.receive(peer, NOTHING_SEEN)
    assert not node.participant.replica.muted
