"""How much verification a member can cause: bounded per slot, then charged to its budget.

Scenarios of a whole federation charge 0.2 ms of a node's only processor per signature; scenarios of
one node count the signatures that are really checked.
"""

import pytest
from msgspec.structs import replace

import defl.budget
import defl.ingress
from defl.budget import Budget, verifications_at_once, verifications_per_s
from defl.committee import Committee
from defl.contacts import FORMER_FROM, GUEST_IDS, STRANGERS_FROM
from defl.ids import NodeId, digest_of
from defl.messages import (
    Agg,
    Blocks,
    Certificates,
    Chunk,
    Evidence,
    Gossip,
    Have,
    Offer,
    Proposal,
    Statements,
    StoreAck,
    Transaction,
    Upd,
)
from defl.output import Connected, Envelope, Received, Trained
from defl.sim.byzantine import KINDS
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions
from defl.sim.scenario import cluster_of
from support.builders import Small, name, nodes, tampered
from support.one_node import OneNode

LIAR = NodeId(3)
OTHERS = nodes(0, 2, 3, 4, 5)  # a quorum of seven without this node


@pytest.fixture
def node() -> OneNode:
    return OneNode(Small(7))


def gossip(*transactions: Transaction) -> Gossip:
    return Gossip(transactions)


# --- Transactions ----------------------------------------------------------------------------


def test_an_update_with_other_ackers_is_not_verified_again(node: OneNode) -> None:
    small = node.small
    assert node.cost(3, gossip(small.upd(3, 1))) == 1 + small.quorum
    other = small.upd(3, 1, ackers=nodes(2, 3, 4, 5, 6))

    assert node.cost(3, gossip(other)) == 0
    assert node.cost(2, gossip(other, small.agg(2, 1))) == 1


def test_only_one_update_per_slot_of_a_frame_is_verified(node: OneNode) -> None:
    small = node.small
    many = [small.upd(3, 1, ackers=nodes(*(set(range(7)) - {i, i + 1}))) for i in range(6)]

    assert node.cost(3, gossip(*many)) == 1 + small.quorum


def test_a_contradicting_update_is_verified_once_and_becomes_evidence(
    node: OneNode,
) -> None:
    small = node.small
    node.receive(3, gossip(small.upd(3, 1)))
    assert node.cost(3, gossip(small.upd(3, 1, digest=name("another")))) == 1 + small.quorum
    assert [type(e.first) for e in node.participant.evidence] == [Upd]
    for third in ("a third", "a fourth"):
        assert node.cost(3, gossip(small.upd(3, 1, digest=name(third)))) == 0


@pytest.mark.parametrize("round_", [0, 3, 2**40])
def test_transactions_of_rounds_that_are_not_open_are_not_verified(
    node: OneNode, round_: int
) -> None:
    small = node.small

    assert node.cost(3, gossip(small.agg(3, round_), small.upd(3, round_))) == 0


def test_a_forged_transaction_does_not_displace_the_true_one(node: OneNode) -> None:
    """Sent first under the author's name, alone or with a genuine one of another member."""
    small = node.small
    true = small.agg(0, 1)
    forged = tampered(true, signature=bytes(64))
    node.refused(3, gossip(forged))
    node.refused(3, gossip(small.agg(3, 1), forged))
    node.receive(2, gossip(true))

    mempool = node.participant.replica._mempool
    assert mempool.live(lambda tx: isinstance(tx, Agg)) == (true,)


# --- Consensus -------------------------------------------------------------------------------


def test_a_vote_is_verified_once_and_a_contradiction_once(node: OneNode) -> None:
    small = node.small
    assert [node.cost(3, small.vote(3, 1, name(b))) for b in "aabcd"] == [1, 0, 1, 0, 0]
    assert node.cost(3, small.vote(3, 500, name("a"))) == 0, "outside the window"


def test_a_timeout_is_verified_once_and_its_repetition_is_still_answered(node: OneNode) -> None:
    small = node.small
    node.receive(2, Certificates(small.qc(4, small.block().id, OTHERS), None))
    late = small.timeout(3, 1)

    for repetition in range(3):
        before = node.checked
        answers = node.receive(3, late, now=10.0 * (repetition + 1))
        assert node.checked == before, "outside the window, with an old QC"
        assert [a.to for a in answers if isinstance(a.message, Certificates)] == [(LIAR,)]


def test_a_timeout_outside_the_window_is_wanted_for_a_newer_qc(node: OneNode) -> None:
    small = node.small
    qc = small.qc(100, small.block().id, OTHERS)
    node.receive(3, small.timeout(3, 101, qc))

    assert node.participant.replica.view == 101


def test_a_repeated_timeout_still_triggers_the_echo(node: OneNode) -> None:
    """It was counted while its view was ahead; in that view, a repetition triggers the echo."""
    small = node.small
    for member in (2, 3, 4):
        node.receive(member, small.timeout(member, 5))
    node.receive(0, Certificates(small.qc(4, small.block().id, OTHERS), None))
    sent = node.receive(2, small.timeout(2, 5))

    assert [m.message.view for m in sent if type(m.message).__name__ == "Timeout"] == [5]


def test_known_certificates_are_not_verified(node: OneNode) -> None:
    small = node.small
    block = small.block()
    assert node.cost(3, Certificates(small.qc(4, block.id), small.tc(5))) == 2 * small.quorum
    for ackers in (nodes(1, 2, 3, 4, 5), nodes(2, 3, 4, 5, 6)):
        assert node.cost(3, Certificates(small.qc(4, block.id, ackers), None)) == 0
        assert node.cost(3, Certificates(small.qc(3, block.id, ackers), small.tc(4))) == 0


def test_an_old_qc_with_a_vote_of_this_node_beyond_its_record_is_wanted(node: OneNode) -> None:
    """A node with a restored record must learn that it signed more, however long ago."""
    small = node.small
    block = small.block().id
    node.receive(3, Certificates(small.qc(9, block, nodes(0, 2, 3, 4, 5)), None))
    node.receive(3, Certificates(small.qc(7, block, nodes(0, 1, 2, 3, 4)), None))

    assert node.participant.replica.observing is not None


def test_only_the_first_proposal_of_a_view_and_the_first_contradiction_are_verified(
    node: OneNode,
) -> None:
    small = node.small
    first = small.proposal(small.block((small.agg(0, 1),), view=2, tc=small.tc(1)))
    second, third = (
        small.proposal(small.block((small.agg(author, 1),), view=2, tc=small.tc(1)))
        for author in (3, 4)
    )
    leader = first.block.header.author
    assert node.cost(leader, first) > 0
    assert node.cost(leader, first) == 0
    assert node.cost(leader, second) > 0
    assert [type(e.first).__name__ for e in node.participant.evidence] == ["SignedHeader"]
    assert node.cost(leader, third) == 0


def test_unrequested_blocks_are_not_verified(node: OneNode) -> None:
    small = node.small
    parent = small.block((small.upd(0, 1), small.agg(2, 1)))
    child = small.block(view=4, parent=parent)
    assert node.cost(3, Blocks((child, parent))) == 0
    node.receive(3, Certificates(small.qc(4, child.id), None))
    assert node.cost(3, Blocks((parent,))) == 0, "another one is missing"
    assert node.cost(3, Blocks((child, parent))) > 0
    assert node.cost(3, Blocks((child, parent))) == 0


def test_only_a_higher_snapshot_is_wanted_and_only_while_blocks_are_missing(
    node: OneNode,
) -> None:
    small = node.small
    snapshot = small.snapshot()
    assert node.cost(3, snapshot) == 0
    node.receive(3, Certificates(small.qc(9, name("far ahead")), None))
    assert node.cost(3, snapshot) > 0
    assert node.participant.replica.head.height == 1
    assert node.cost(3, snapshot) == 0


# --- Offers, acks, attestations, evidence ----------------------------------------------------


def offers_of(small: Small) -> tuple[Offer, Offer, Offer]:
    first, second, third = (small.offer(3, 1, small.blob(seed)[0]) for seed in (1, 2, 3))
    return first, second, third


def test_a_repeated_offer_is_answered_and_not_verified(node: OneNode) -> None:
    """The author missed the ack. A second offer becomes evidence once; then the first is
    returned."""
    first, second, third = offers_of(node.small)
    assert [node.cost(3, offer) for offer in (first, first, second)] == [1, 0, 1]
    assert [type(e.first) for e in node.participant.evidence] == [Offer]
    before = node.checked
    assert node.receive(3, third) == [Envelope((LIAR,), first)]
    assert node.receive(2, third) == [], "only its author gets its offer back"
    assert node.checked == before
    far = node.small.offer(3, 4, first.manifest)
    assert node.cost(3, far) == 0, "outside the window"


def test_an_unverified_copy_of_an_offer_never_replaces_the_verified_one(node: OneNode) -> None:
    first, _, _ = offers_of(node.small)
    node.receive(3, first)
    node.receive(2, tampered(first, signature=bytes(64)))

    assert node.participant.pool._offers[1, LIAR] == first


def own_offer(node: OneNode) -> Offer:
    manifest, _ = node.small.blob(9)
    node.participant.handle(Trained(type(node.participant.state.round)(1), manifest), 0.2)
    offer = node.participant.pool.offer_for(type(node.participant.state.round)(1))
    assert offer is not None
    return offer


def test_only_acks_that_this_nodes_offer_needs_are_verified(node: OneNode) -> None:
    small = node.small
    offer = own_offer(node)
    foreign = small.ack(3, offers_of(small)[0])
    assert node.cost(3, foreign) == 0
    assert node.cost(3, replace(small.ack(3, offer), digest=name("another"))) == 0
    acks = {member: small.ack(member, offer) for member in (0, 2, 3, 4, 5)}
    node.refused(3, tampered(acks[3], signature=bytes(64)))
    assert [node.cost(member, acks[member]) for member in (3, 3, 0, 2)] == [1, 0, 1, 1]
    assert node.cost(4, acks[4]) == 1, "a quorum together with its own"
    assert node.cost(5, acks[5]) == 0, "it is certified"


def test_attestations_of_known_authors_and_other_rounds_are_not_verified(node: OneNode) -> None:
    small = node.small
    model = name("model")
    attestations = [
        small.attestation(3, 3, model),
        small.attestation(3, 3, model),
        small.attestation(3, 2, model),
        small.attestation(3, 3, name("another")),
        small.attestation(3, 3, name("a third")),
    ]
    assert [node.cost(3, attestation) for attestation in attestations] == [1, 0, 0, 1, 0]


def test_evidence_of_a_known_kind_is_not_verified(node: OneNode) -> None:
    small = node.small
    pairs = [Evidence(small.vote(3, v, name("a")), small.vote(3, v, name("b"))) for v in (1, 2)]
    assert [node.cost(2, evidence) for evidence in pairs] == [2, 0]


def test_an_unrequested_chunk_is_not_hashed(node: OneNode) -> None:
    manifest, payload = node.small.blob(1)
    chunk = Chunk(manifest.digest, 0, memoryview(payload[:256]))
    assert node.participant.wanted(LIAR, chunk) is None
    node.receive(3, node.small.offer(3, 1, manifest))
    node.participant.handle(Connected(LIAR), 0.2)
    assert node.participant.wanted(LIAR, chunk) == chunk
    assert digest_of(chunk.data) == manifest.chunks[0]


def test_every_message_type_has_a_rule_for_being_wanted() -> None:
    small = Small()
    node = OneNode(small, me=NodeId(0))
    unrequested = (
        Blocks,
        Chunk,
        StoreAck,
        type(small.snapshot()),
        Have,
    )  # wanted only on request; tested above
    unrequested += (Proposal, Statements)  # not from the leader; tested in test_recall.py
    for message in small.messages():
        if not isinstance(message, unrequested):
            assert isinstance(node.participant.wanted(NodeId(2), message), type(message))
    proposal = small.proposal(small.block())
    assert node.participant.wanted(proposal.block.header.author, proposal) == proposal


def test_wanted_changes_no_state() -> None:
    small = Small()
    node, twin = OneNode(small), OneNode(small)
    for message in small.messages():
        node.participant.wanted(NodeId(2), message)
    assert node.participant.stored == twin.participant.stored
    for message in small.messages():
        if not isinstance(message, Chunk):
            event = Received(NodeId(1), message)
            assert node.participant.handle(event, 1.0) == twin.participant.handle(event, 1.0)


# --- The budget ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 7, 10, 31, 100])
def test_liars_together_may_use_half_a_core_and_honest_members_are_never_delayed(
    size: int,
) -> None:
    """At 0.11 ms per signature. An honest member sends two updates and a dozen views per second,
    plus a whole unknown block with its certificates at once."""
    committee = Committee(tuple(bytes([i]) * 32 for i in range(size)))
    quorum = committee.quorum
    assert committee.faults * verifications_per_s(committee) * 0.00011 <= 0.5
    assert verifications_per_s(committee) >= 2 * (quorum + 1)
    budget = Budget(committee)
    block = size * (quorum + 1) + size + 3 * quorum + 1
    assert budget.spend(LIAR, block, 100.0) == 0
    for second in range(100, 110):
        assert budget.spend(LIAR, quorum + 1 + 12, float(second)) == 0


def test_a_peer_over_its_budget_waits_and_the_others_do_not() -> None:
    committee = Committee(tuple(bytes([i]) * 32 for i in range(4)))
    budget = Budget(committee)
    budget.spend(LIAR, verifications_at_once(committee), 5.0)

    assert budget.spend(LIAR, verifications_per_s(committee), 5.0) == 1.0
    assert budget.spend(NodeId(2), 16, 5.0) == 0


def test_former_members_that_flood_do_not_make_a_guest_wait() -> None:
    committee = Committee(tuple(bytes([i]) * 32 for i in range(4)))
    budget = Budget(committee)
    budget.spend(NodeId(FORMER_FROM), verifications_at_once(committee) + 1000, 5.0)
    for former in range(FORMER_FROM, FORMER_FROM + 3):
        assert budget.wait_s(NodeId(former), 5.0) > 0, "they share one budget"

    assert budget.wait_s(GUEST_IDS[0], 5.0) == 0
    budget.spend(NodeId(STRANGERS_FROM), verifications_at_once(committee) + 1000, 5.0)
    assert budget.wait_s(GUEST_IDS[0], 5.0) == 0


def test_strangers_that_flood_do_not_make_a_former_member_wait() -> None:
    committee = Committee(tuple(bytes([i]) * 32 for i in range(4)))
    budget = Budget(committee)
    budget.spend(NodeId(STRANGERS_FROM + 1), verifications_at_once(committee) + 1000, 5.0)

    assert budget.wait_s(NodeId(STRANGERS_FROM + 2), 5.0) > 0, "they share one budget"
    assert budget.wait_s(NodeId(FORMER_FROM), 5.0) == 0


def test_a_debt_is_never_forgiven_however_short_the_pauses() -> None:
    committee = Committee(tuple(bytes([i]) * 32 for i in range(7)))
    budget, now, sent, seconds = Budget(committee), 0.0, 0, 5.0
    most = 1.02 * (verifications_at_once(committee) + verifications_per_s(committee) * seconds)
    while now < seconds and sent <= most:
        budget.spend(LIAR, 1, now)
        sent += 1
        now += budget.wait_s(LIAR, now)

    assert sent <= most


# --- The whole federation --------------------------------------------------------------------

ROUNDS = 4
# Training takes no time, so the comparison covers the protocol alone.
CONDITIONS = Conditions(signature_s=0.0002, work_s=0.001, latency_s=0.005, jitter_s=0.005)


def run_for(size: int, kind: str | None, seed: int = 1) -> Cluster:
    liars = nodes(*range(1, size, 3))[: (size - 1) // 3] if kind is not None else ()
    byzantine = {liar: KINDS[str(kind)] for liar in liars}
    cluster = cluster_of(size, rounds=ROUNDS, seed=seed, conditions=CONDITIONS, byzantine=byzantine)
    cluster.run(until=lambda: cluster.rounds_closed == ROUNDS or cluster.now > 20.0)
    return cluster


def duration(cluster: Cluster) -> float:
    return cluster.checker.closed_at.get(ROUNDS, cluster.now)


@pytest.mark.parametrize("size", [4, 7])
def test_the_most_expensive_frames_slow_rounds_by_less_than_half(
    size: int,
) -> None:
    """f liars send them constantly, compared with the same members being honest. In larger
    federations they are over their budgets, and so as slow as they make themselves:
    test_unsigned_floods.py compares such members with silent ones."""
    honest, attacked = run_for(size, None), run_for(size, "exhauster")

    assert attacked.rounds_closed == ROUNDS
    assert attacked.checker.violations == []
    assert attacked.traffic.messages["Gossip"] > 5 * honest.traffic.messages["Gossip"]
    assert duration(attacked) < 1.5 * duration(honest)


def test_without_slots_and_budget_the_same_frames_make_rounds_three_times_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attack works against a node that verifies every frame at once."""
    honest = run_for(7, None)
    monkeypatch.setattr(Cluster, "_wanted", lambda _self, _node, _peer, message: message)
    monkeypatch.setattr(defl.budget, "LIARS_VERIFICATIONS_PER_S", 10**9)
    monkeypatch.setattr(defl.ingress, "SLICE_SIGNATURES", 10**6)

    assert duration(run_for(7, "exhauster")) > 3 * duration(honest)


def test_a_liar_costs_at_most_half_as_much_again_as_an_honest_member() -> None:
    def verified(cluster: Cluster, member: int) -> int:
        budgets = [n.processor.budget for n in cluster.honest if n.processor and n.id != member]
        return sum(budget.spent[NodeId(member)] for budget in budgets if budget) // len(budgets)

    honest, attacked = run_for(7, None), run_for(7, "exhauster")

    assert verified(attacked, 1) < 1.5 * verified(honest, 1)
