"""A node restored from an old copy of its disk asks the others what it signed since.

It signs nothing before enough of them have answered. Whole participants on virtual time.
"""

import numpy as np
import pytest
from msgspec.structs import replace

from defl.changes import Rounds
from defl.committee import TAU_MAX, Rules
from defl.ids import NodeId, Round, View
from defl.messages import (
    ACKS_RECALLED_MAX,
    Gossip,
    Message,
    Offer,
    Proposal,
    SignedHeader,
    Statements,
    StatementsRequest,
    StoreAck,
    Timeout,
    Vote,
)
from defl.output import (
    Connected,
    Observing,
    Output,
    PeerMisbehaved,
    Propose,
    Received,
    SafetyRecord,
    Tick,
    Train,
    Trained,
)
from defl.participant import Participant
from defl.pool.pool import Pool
from defl.recall import NOTHING_SEEN, Recall, beyond_record
from defl.sim.byzantine import KINDS
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions, Rollback
from defl.sim.scenario import cluster_of
from support.builders import Small, name, nodes

BOTH_RULES = pytest.mark.parametrize("rules", list(Rules))
ME = NodeId(0)
SIGNED = (Vote, Timeout, Proposal, StoreAck)


def participant(cluster: Cluster, member: int) -> Participant:
    return cluster.nodes[member].behaviour.participant


def sent(output: Output, kind: type[Message]) -> list[Message]:
    return [item.message for item in output.send if isinstance(item.message, kind)]


@pytest.fixture
def small() -> Small:
    return Small(7)


def started(small: Small) -> Participant:
    """A member of seven that has just started: q - 1 = 4 of the six others must answer."""
    node = Participant(small.federation, ME, small.signers[ME], small.durable())
    node.handle(Tick(), 0.0)
    return node


def answer(node: Participant, peer: int, statements: Statements = NOTHING_SEEN) -> Output:
    return node.handle(Received(NodeId(peer), statements), 0.1)


# --- Asking ---------------------------------------------------------------------------------


def test_a_starting_node_asks_all_members_until_enough_have_answered(
    small: Small,
) -> None:
    node = Participant(small.federation, ME, small.signers[ME], small.durable())
    first = node.handle(Tick(), 0.0)
    requests = [item.to for item in first.send if isinstance(item.message, StatementsRequest)]
    assert requests == [nodes(1, 2, 3, 4, 5, 6)]
    answer(node, 3)
    again = node.handle(Tick(), 1.5)
    assert [i.to for i in again.send if isinstance(i.message, StatementsRequest)] == [
        nodes(1, 2, 4, 5, 6)
    ]
    assert sent(node.handle(Connected(NodeId(1)), 1.6), StatementsRequest)
    assert not sent(node.handle(Connected(NodeId(3)), 1.6), StatementsRequest)
    for peer in (1, 2, 4):
        answer(node, peer)
    assert not sent(node.handle(Tick(), 9.0), StatementsRequest)
    assert not sent(node.handle(Connected(NodeId(5)), 9.0), StatementsRequest)


def test_a_starting_node_wakes_up_to_ask_again(small: Small) -> None:
    """Requests may be lost, and nothing else wakes the node up while the log is idle."""
    node = Participant(small.federation, ME, small.signers[ME], small.durable())

    assert node.handle(Tick(), 0.0).wake_at == small.federation.timing.view_base_s


def test_a_vote_that_arrives_when_a_request_is_due_does_not_hold_it_up(small: Small) -> None:
    """A liar could send one vote after the other."""
    node = started(small)
    vote = small.vote(3, 1, name("block"))

    assert sent(node.handle(Received(NodeId(3), vote), 1.5), StatementsRequest)


def test_nothing_is_signed_before_q_minus_1_members_have_answered(small: Small) -> None:
    node = started(small)
    proposal = small.proposal(small.block())
    leader = proposal.block.header.author
    assert leader != ME
    node.handle(Received(leader, proposal), 0.1)
    assert not sent(node.handle(Tick(), 2.0), Timeout)
    for peer in (1, 2, 3):
        assert not any(sent(answer(node, peer), kind) for kind in SIGNED)
    done = answer(node, 4)

    assert sent(done, Vote), "statements that had to wait are signed"


def test_a_node_trains_while_it_asks_and_offers_when_it_may_sign(small: Small) -> None:
    """Training signs nothing, and the others may take a long time to start."""
    node = Participant(small.federation, ME, small.signers[ME], small.durable())
    assert node.handle(Tick(), 0.0).work == (Train(Round(1), small.initial.digest),)
    update = replace(small.blob(1)[0], base=small.initial.digest)
    early = node.handle(Trained(Round(1), update), 0.1)
    assert not sent(early, Offer)
    assert update.digest not in early.drop
    for peer in (1, 2, 3):
        assert not sent(answer(node, peer), Offer)

    (offer,) = sent(answer(node, 4), Offer)
    assert offer.manifest == update


def test_a_tick_reaches_the_log_and_the_other_parts_that_are_due(small: Small) -> None:
    """The view has timed out, and the node's offer is to be repeated."""
    node = started(small)
    for peer in (1, 2, 3, 4):
        answer(node, peer)
    update = replace(small.blob(1)[0], base=small.initial.digest)
    node.handle(Trained(Round(1), update), 0.1)
    node.handle(Received(NodeId(2), Gossip((small.agg(2, 1),))), 0.2)
    due = node.handle(Tick(), 50.0)

    assert sent(due, Timeout)
    assert sent(due, Offer)


def test_an_observer_does_not_train(small: Small) -> None:
    node = started(small)
    answer(node, 1, shown(small, "vote"))
    update = replace(small.blob(1)[0], base=small.initial.digest)
    late = node.handle(Trained(Round(1), update), 0.2)
    assert not sent(late, Offer)
    assert update.digest in late.drop
    assert not node.handle(Tick(), 5.0).work


def test_an_update_trained_before_the_node_became_an_observer_is_dropped(small: Small) -> None:
    """Nobody will ever be offered it."""
    node = started(small)
    update = replace(small.blob(1)[0], base=small.initial.digest)
    assert update.digest not in node.handle(Trained(Round(1), update), 0.1).drop

    output = answer(node, 1, shown(small, "vote"))

    assert not sent(output, Offer)
    assert update.digest in output.drop


def foreign(small: Small, kind: str) -> Statements:
    """A genuine statement of this kind by member 5, and of no other member."""
    statements = small.statements(5, small.offer(5, 1, small.blob(1)[0]))
    return replace(NOTHING_SEEN, **{kind: getattr(statements, kind)})


@pytest.mark.parametrize("kind", ["vote", "timeout", "proposal", "offer", "acks"])
def test_an_answer_with_another_members_statements_does_not_count(small: Small, kind: str) -> None:
    """A Byzantine member shows what third members signed. The node neither counts the answer nor
    becomes an observer, and signs as soon as an honest member answers."""
    node = started(small)
    proposal = small.proposal(small.block())
    node.handle(Received(proposal.block.header.author, proposal), 0.1)
    for peer in (1, 2, 3):
        answer(node, peer)
    output = answer(node, 4, foreign(small, kind))

    assert any(isinstance(notice, PeerMisbehaved) for notice in output.notices)
    assert node.replica.muted
    assert node.replica.observing is None
    assert sent(answer(node, 5), Vote)


def test_one_foreign_ack_among_the_nodes_own_voids_the_whole_answer(small: Small) -> None:
    """The own ack is beyond the record, but an answer that mixes in another member's is void."""
    node = started(small)
    own, theirs = shown(small, "store-ack").acks, foreign(small, "acks").acks
    output = answer(node, 1, replace(NOTHING_SEEN, acks=own + theirs))

    assert any(isinstance(notice, PeerMisbehaved) for notice in output.notices)
    assert node.replica.observing is None
    answer(node, 2, replace(NOTHING_SEEN, acks=own))
    assert node.replica.observing is not None, "an honest answer with the same ack counts"


def test_the_operators_change_is_signed_once_enough_members_have_answered(small: Small) -> None:
    """A node that has forgotten its CHANGE of this round must not sign another one."""
    node = started(small)
    node.handle(Propose((Rounds(Round(9)),)), 0.1)
    for peer in (1, 2, 3):
        assert not sent(answer(node, peer), Gossip)
    assert node.changes_unsent

    (gossip,) = sent(answer(node, 4), Gossip)
    (change,) = gossip.transactions
    small.verifier().verify(change)


def test_an_observer_signs_no_change(small: Small) -> None:
    node = started(small)
    answer(node, 1, shown(small, "vote"))
    for peer in (2, 3, 4, 5):
        answer(node, peer)

    assert not sent(node.handle(Propose((Rounds(Round(9)),)), 0.2), Gossip)


# --- Answering ------------------------------------------------------------------------------


def test_a_peer_is_shown_its_newest_statements_of_each_kind(small: Small) -> None:
    recall = Recall(small.federation, ME)
    manifest, _ = small.blob(1)
    offer = small.offer(2, 3, manifest)
    proposal = small.proposal(small.block())
    author = proposal.block.header.author
    for message in (
        small.vote(2, 5, name("a")),
        small.vote(2, 4, name("b")),
        small.vote(3, 9, name("c")),
        small.timeout(2, 6),
        small.offer(2, 1, manifest),
        offer,
        small.offer(2, 2, small.blob(2)[0]),
        proposal,
        Gossip((small.agg(2, 1),)),
    ):
        recall.remember(message)
    acks = (small.ack(2, small.offer(0, 1, manifest)),)
    (envelope,) = recall.answer(NodeId(2), acks, 0.0)

    assert envelope.to == (NodeId(2),)
    shown = envelope.message
    assert isinstance(shown, Statements)
    assert (shown.vote, shown.timeout) == (small.vote(2, 5, name("a")), small.timeout(2, 6))
    assert (shown.offer, shown.acks) == (offer, acks)
    assert author == 2 or shown.proposal is None
    (envelope,) = recall.answer(author, (), 10.0)
    header = SignedHeader(proposal.block.header, proposal.signature)
    assert isinstance(envelope.message, Statements)
    assert envelope.message.proposal == header


def test_a_newer_timeout_and_proposal_take_the_place_of_older_ones(small: Small) -> None:
    recall = Recall(small.federation, NodeId(1))
    newest = proposal_of(small, 6, "newest")
    for message in (
        small.timeout(0, 4),
        small.timeout(0, 6),
        small.timeout(0, 5),
        proposal_of(small, 4, "oldest"),
        newest,
        proposal_of(small, 5, "older"),
    ):
        recall.remember(message)
    (envelope,) = recall.answer(ME, (), 0.0)

    shown = envelope.message
    assert isinstance(shown, Statements)
    assert shown.timeout == small.timeout(0, 6)
    assert shown.proposal == SignedHeader(newest.block.header, newest.signature)


def test_the_first_of_two_contradicting_statements_is_shown(small: Small) -> None:
    """A node that has lost its newest state learns what counted, not what came afterwards."""
    recall = Recall(small.federation, NodeId(1))
    vote, offer = small.vote(0, 4, name("a")), small.offer(0, 1, small.blob(1)[0])
    timeout, proposal = small.timeout(0, 4), proposal_of(small, 4, "first")
    for message in (
        vote,
        small.vote(0, 4, name("b")),
        timeout,
        small.timeout(0, 4, small.qc(3, name("a"))),
        offer,
        small.offer(0, 1, small.blob(2)[0]),
        proposal,
        proposal_of(small, 4, "second"),
    ):
        recall.remember(message)
    (envelope,) = recall.answer(ME, (), 0.0)

    header = SignedHeader(proposal.block.header, proposal.signature)
    assert envelope.message == Statements(vote, timeout, header, offer, ())


def test_all_acks_of_the_rounds_that_are_kept_fit_an_answer() -> None:
    """A node collects acks for its offers of rounds R - tau + 1 to R + 2."""
    assert TAU_MAX + 2 <= ACKS_RECALLED_MAX


def test_a_peer_gets_one_answer_in_half_a_period_however_often_it_asks(small: Small) -> None:
    recall = Recall(small.federation, ME)
    answers = [recall.answer(NodeId(3), (), 0.1 * step) for step in range(20)]
    assert sum(map(len, answers)) == 4


def test_a_peer_is_answered_at_once_after_the_clock_was_set_back(small: Small) -> None:
    recall = Recall(small.federation, ME)
    recall.answer(NodeId(3), (), 1000.0)

    assert recall.answer(NodeId(3), (), 1.0)


def test_all_members_may_start_at_once_and_answer_each_other() -> None:
    cluster = cluster_of(4, rounds=2, conditions=Conditions(all_crash_at_s=(1.0, 3.0)))
    cluster.run()
    assert cluster.conclude() == []


# --- What is beyond the record --------------------------------------------------------------


def shown(small: Small, kind: str) -> Statements:
    manifest, _ = small.blob(1)
    match kind:
        case "vote":
            return replace(NOTHING_SEEN, vote=small.vote(0, 7, name("b")))
        case "timeout":
            return replace(NOTHING_SEEN, timeout=small.timeout(0, 7))
        case "proposal":
            block = small.block()
            header = replace(block.header, author=ME)
            statement = small.proposal(replace(block, header=header))
            signed = SignedHeader(header, statement.signature)
            return replace(NOTHING_SEEN, proposal=signed)
        case "offer":
            return replace(NOTHING_SEEN, offer=small.offer(0, 1, manifest))
        case _:
            return replace(NOTHING_SEEN, acks=(small.ack(0, small.offer(3, 1, manifest)),))


@pytest.mark.parametrize("kind", ["vote", "timeout", "proposal", "offer", "store-ack"])
def test_a_statement_beyond_the_record_makes_the_node_an_observer(small: Small, kind: str) -> None:
    node = started(small)
    for peer in (1, 2, 3):
        answer(node, peer)
    output = answer(node, 4, shown(small, kind))

    (notice,) = [n for n in output.notices if isinstance(n, Observing)]
    assert kind in notice.reason
    assert output.persist is not None
    assert output.persist.record is not None
    assert output.persist.record.observing == notice.reason
    assert not any(sent(output, signed) for signed in SIGNED)
    assert not any(sent(node.handle(Tick(), 9.0), signed) for signed in SIGNED)


def test_a_late_answer_still_counts(small: Small) -> None:
    node = started(small)
    for peer in (1, 2, 3, 4):
        answer(node, peer)
    assert node.replica.observing is None
    answer(node, 5, shown(small, "vote"))

    assert node.replica.observing is not None


def test_a_late_answer_is_wanted_once(small: Small) -> None:
    node = started(small)
    for peer in (1, 2, 3, 4):
        answer(node, peer)
    late = shown(small, "vote")
    assert node.wanted(NodeId(5), late) == late
    answer(node, 5, late)
    assert node.wanted(NodeId(5), late) is None


@BOTH_RULES
def test_a_restarted_author_is_certified_by_exactly_a_quorum(rules: Rules) -> None:
    """Member 1 is silent. The author's own ack, given before its restart, must count again."""
    silent = {NodeId(1): KINDS["silent"]}
    cluster = cluster_of(4, rounds=1, rules=rules, byzantine=silent)
    author = cluster.nodes[2]
    cluster.traffic.censor = lambda _source, target, message: (
        target == author.id and isinstance(message, StoreAck)
    )
    cluster.run(until=lambda: Round(1) in author.disk.offers)
    cluster.traffic.censor = None
    cluster.crash(author.id, downtime_s=0.1, power=False)
    cluster.run()

    assert cluster.conclude() == []
    assert cluster.rounds_closed == 1


@pytest.mark.parametrize("age", [0, 1, 2])
def test_expired_offers_and_acks_do_not_make_an_observer(age: int) -> None:
    """The answering node lags: it still has statements that the other has expired. The newest of
    these are of round R - tau."""
    cluster = cluster_of(4, rounds=6, tau=2)
    cluster.run(until=lambda: cluster.rounds_closed == 1)
    node = participant(cluster, 1)
    old_offer = node.pool.offer_for(Round(1))
    acks = (participant(cluster, peer).pool.acks_from(NodeId(1)) for peer in (0, 2, 3))
    (old_ack, *_) = (ack for given in acks for ack in given)
    assert old_offer is not None
    assert old_ack.round == 1
    cluster.run(until=lambda: node.state.round == 1 + node.federation.tau + age)
    assert node.pool.offer_for(Round(1)) is None
    late = replace(NOTHING_SEEN, offer=old_offer, acks=(old_ack,))
    node._recall._answered.discard(NodeId(2))
    node.handle(Received(NodeId(2), late), cluster.now)

    assert node.replica.observing is None


# --- Its own statements against its record ---------------------------------------------------


def record_of(small: Small) -> SafetyRecord:
    """Return the record of a member that proposed, voted and timed out in view 5."""
    first = small.durable().record
    assert first is not None
    return replace(
        first,
        last_voted_view=View(5),
        last_timeout_view=View(5),
        last_vote=small.vote(0, 5, name("a")),
        last_timeout=small.timeout(0, 5),
        last_proposal=proposal_of(small, 5, "a"),
    )


def proposal_of(small: Small, view: int, text: str) -> Proposal:
    """A proposal of member 0; another `text` makes it another block."""
    return small.proposal(small.block(view=view, author=ME, transactions_root=name(text)))


@pytest.mark.parametrize(
    ("view", "text", "is_known"),
    [(4, "a", True), (4, "b", True), (5, "a", True), (5, "b", False), (6, "a", False)],
)
@pytest.mark.parametrize("kind", ["vote", "timeout", "proposal"])
def test_only_what_the_record_cannot_explain_is_beyond_it(
    small: Small, kind: str, view: int, text: str, is_known: bool
) -> None:
    """An older statement is; so is the very statement of the record's last view, but no other of
    that view."""
    proposal = proposal_of(small, view, text)
    high_qc = None if text == "a" else small.qc(1, name("certified"))
    signed = {
        "vote": small.vote(0, view, name(text)),
        "timeout": small.timeout(0, view, high_qc),
        "proposal": SignedHeader(proposal.block.header, proposal.signature),
    }
    answered = replace(NOTHING_SEEN, **{kind: signed[kind]})
    pool = Pool(small.federation, ME, small.signers[ME], small.durable(), Round(0))

    unknown = beyond_record(answered, record_of(small), pool, Round(0))

    assert (unknown is None) is is_known


def test_another_offer_for_a_round_is_beyond_the_record(small: Small) -> None:
    pool = Pool(small.federation, ME, small.signers[ME], small.durable(), Round(0))
    (own, _), (other, _) = small.blob(1), small.blob(2)
    pool.publish(Round(1), own)
    for manifest, is_known in ((own, True), (other, False)):
        answered = replace(NOTHING_SEEN, offer=small.offer(0, 1, manifest))
        unknown = beyond_record(answered, record_of(small), pool, Round(0))
        assert (unknown is None) is is_known


# --- Rolled back ----------------------------------------------------------------------------


@BOTH_RULES
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("writes_ago", [1, 5, 40])
def test_a_node_restored_from_an_old_copy_contradicts_nothing_that_a_quorum_knows(
    seed: int, writes_ago: int, rules: Rules
) -> None:
    rollback = Rollback(NodeId(2), at_s=1.5, writes_ago=writes_ago)
    cluster = cluster_of(
        4, rounds=3, seed=seed, rules=rules, conditions=Conditions(rollbacks=(rollback,))
    )
    cluster.run()

    assert cluster.conclude() == []
    assert cluster.rounds_closed == 3
    if writes_ago > 1:  # no other member may know of a single write
        assert participant(cluster, 2).replica.observing is not None


def offered_and_rolled_back() -> Cluster:
    """No two trainings give the same update. The disk is copied during training and restored when
    all members have seen the offer."""
    cluster = cluster_of(4, rounds=3, seed=1)
    draws = iter(range(10_000))
    cluster._training = lambda _node, _round, base: base + np.float32(1 + next(draws) * 1e-3)
    node = cluster.nodes[2]
    cluster.checker.rolled_back.add(node.id)
    copies = [node.disk.copy()]

    def has_offered() -> bool:
        if Round(2) in node.disk.offers:
            return True
        copies[0] = node.disk.copy()
        return False

    def all_received_the_offer() -> bool:
        shelves = [participant(cluster, peer).pool.labels for peer in (0, 1, 3)]
        return all((Round(2), node.id) in labels for labels in shelves)

    cluster.run(until=has_offered)
    cluster.run(until=all_received_the_offer)
    cluster.crash(node.id, downtime_s=0.01, power=False)
    node.disk = copies[0]
    cluster.run()
    return cluster


def test_a_node_restored_from_a_copy_made_during_training_does_not_offer_twice() -> None:
    cluster = offered_and_rolled_back()

    assert cluster.conclude() == []
    observing = participant(cluster, 2).replica.observing
    assert observing is not None
    assert "an old copy" in observing


def test_the_checker_detects_a_rolled_back_node_that_does_not_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Recall, "asking", False)
    violations = offered_and_rolled_back().conclude()

    assert "no honest member signed twice: node 2 contradicts its own offer (0, 2)" in violations


def test_a_rolled_back_node_is_one_of_the_f_that_may_fail() -> None:
    rollback = Rollback(NodeId(2), at_s=1.5, writes_ago=10)
    cluster = cluster_of(
        7,
        rounds=3,
        conditions=Conditions(rollbacks=(rollback,)),
        byzantine={NodeId(5): KINDS["silent"]},
    )
    cluster.run()

    assert cluster.conclude() == []
    assert cluster.rounds_closed == 3
