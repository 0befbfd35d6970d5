"""Moments at which a careless implementation would lose safety, an update, or progress.

Whole participants on virtual time.
"""

from collections.abc import Callable
from copy import deepcopy

import pytest
from msgspec.structs import replace

from defl.committee import Rules, Timing
from defl.consensus.answers import BLOCK_ANSWERS_PER_PERIOD_MAX, SNAPSHOTS_PER_PERIOD_MAX
from defl.ids import Digest, NodeId, Round, digest_of
from defl.messages import (
    Agg,
    Attestation,
    BlockRequest,
    Blocks,
    Certificates,
    Gossip,
    Message,
    Offer,
    Proposal,
    Snapshot,
    StoreAck,
    Timeout,
    Upd,
    Vote,
    genesis_qc,
)
from defl.output import (
    Attested,
    Event,
    Observing,
    Output,
    Received,
    ServeChunk,
    Tick,
    Train,
    Trained,
)
from defl.schema import Role
from defl.sim.byzantine import KINDS
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions
from defl.sim.scenario import cluster_of
from defl.sim.sim_node import Honest
from defl.wire import encode
from defl.work import model_row

BOTH_RULES = pytest.mark.parametrize("rules", list(Rules))


def participant(cluster: Cluster, member: int):
    return cluster.nodes[member].behaviour.participant


def run_until(cluster: Cluster, condition: Callable[[], bool]) -> None:
    """Runs until the condition holds; a run that ends without it fails the test."""
    cluster.run(until=condition)
    assert condition(), "the scenario never reached its condition"


def all_vote_now(cluster: Cluster, round_: int) -> None:
    """Every member submits its AGG without waiting for a quorum of updates."""
    for node in cluster.nodes:
        node.behaviour.participant.client._submit_agg(Round(round_))
        node.handle(Tick())


def test_a_member_killed_right_after_its_last_attestation_still_gets_the_proof() -> None:
    """Its attestation reaches all others, and theirs do not reach it. Regression: the others ended
    at once, and it had nobody left to get the proof of the last model from."""
    killed, proven = NodeId(3), []
    cluster = cluster_of(
        4,
        rounds=2,
        conditions=Conditions(latency_s=0.05, jitter_s=0.001),
        on_notice=lambda node, notice: (
            proven.append(node) if isinstance(notice, Attested) else None
        ),
    )
    cluster.traffic.censor = lambda _source, target, message: (
        target == killed and isinstance(message, Attestation) and cluster.crashes == 0
    )
    own = participant(cluster, killed)._finish
    run_until(cluster, lambda: own.agreeing > 0)
    cluster.after(0.04, lambda: cluster.crash(killed, downtime_s=20.0, power=False))
    run_until(cluster, lambda: killed in proven)

    assert sorted(proven) == [0, 1, 2, 3]
    run_until(cluster, lambda: all(cluster.nodes[member].ended for member in range(3)))
    assert cluster.now < 20.0 + Timing().grace_s / 2, "at once, when all have the proof"
    finish(cluster)


def test_a_member_killed_after_it_showed_its_proof_has_it_when_all_others_are_gone() -> None:
    """They ended because it had shown that it can do without them."""
    killed, proven = NodeId(3), []
    cluster = cluster_of(
        4,
        rounds=2,
        on_notice=lambda node, notice: (
            proven.append(node) if isinstance(notice, Attested) else None
        ),
    )
    run_until(cluster, lambda: killed in proven)
    cluster.crash(killed, downtime_s=1000.0, power=True)
    run_until(cluster, lambda: all(cluster.nodes[member].ended for member in range(3)))
    proven.clear()
    run_until(cluster, lambda: killed in proven)

    assert cluster.now > 1000.0
    finish(cluster)


def test_nodes_end_at_once_when_all_have_the_proof_of_the_last_model() -> None:
    cluster = cluster_of(7, rounds=2)
    run_until(cluster, lambda: all(node.behaviour.participant.attesting for node in cluster.nodes))
    last_model_at = cluster.now
    run_until(cluster, lambda: all(node.ended for node in cluster.nodes))

    assert cluster.now < last_model_at + Timing().view_base_s


def finish(cluster: Cluster) -> None:
    cluster.run()
    assert cluster.conclude() == []
    assert cluster.rounds_closed == cluster.federation.rounds


class MessageTap:
    """Records all messages; `lose` selects the ones to drop."""

    def __init__(self, cluster: Cluster) -> None:
        self.messages: list[tuple[NodeId, NodeId, Message]] = []
        self.lose: Callable[[NodeId, NodeId, Message], bool] = lambda _s, _t, _m: False
        cluster.traffic.censor = self

    def __call__(self, source: NodeId, target: NodeId, message: Message) -> bool:
        self.messages.append((source, target, message))
        return self.lose(source, target, message)

    def of(self, source: int, kind: type) -> list[Message]:
        return [m for s, _, m in self.messages if s == source and isinstance(m, kind)]


@BOTH_RULES
def test_a_voter_that_restarts_keeps_its_lock_and_its_last_vote(rules: Rules) -> None:
    cluster = cluster_of(4, rounds=3, seed=5, rules=rules)
    voter = NodeId(2)
    run_until(cluster, lambda: participant(cluster, voter).replica.record.lock.view > 5)
    cluster.crash(voter, downtime_s=0.5)
    before = cluster.nodes[voter].disk.record
    assert before is not None
    run_until(cluster, lambda: cluster.nodes[voter].alive)
    after = participant(cluster, voter).replica.record

    assert after.lock == before.lock
    assert after.last_voted_view == before.last_voted_view
    assert after.last_vote == before.last_vote
    finish(cluster)


def test_a_timeout_with_a_forged_high_qc_moves_no_view() -> None:
    """A claimed view counts only with a valid QC for it."""
    cluster = cluster_of(4, rounds=2, seed=3)
    run_until(cluster, lambda: cluster.rounds_closed >= 1)
    honest = participant(cluster, 1).replica
    liar, target = NodeId(0), cluster.nodes[1]
    real = honest.record.high_qc
    invented = type(real)(real.view + 40, real.block, real.signers, real.signatures)
    view_before = honest.view
    refused_before = cluster.traffic.faults_refused.total()
    for claim in (invented, genesis_qc(real.block)):
        timeout = Timeout(0, type(real.view)(real.view + 41), claim, None, liar, bytes(64))
        target.processor.receive(liar, encode(timeout), heavy=False)

    assert cluster.traffic.faults_refused.total() == refused_before + 2
    assert participant(cluster, 1).replica.view == view_before
    finish(cluster)


@BOTH_RULES
def test_a_node_that_missed_more_views_than_the_window_catches_up(rules: Rules) -> None:
    cluster = cluster_of(4, rounds=20, seed=2, rules=rules)
    away = NodeId(3)
    run_until(cluster, lambda: participant(cluster, 0).replica.view > 10)
    cluster.crash(away, downtime_s=60.0)
    run_until(cluster, lambda: cluster.nodes[away].alive)
    missed_views = participant(cluster, 0).replica.view - participant(cluster, away).replica.view
    assert missed_views > 64

    cluster.run(until=lambda: participant(cluster, away).state.round >= 18)
    finish(cluster)


@BOTH_RULES
@pytest.mark.parametrize("power", [False, True])
def test_progress_resumes_after_all_nodes_die_right_after_voting(rules: Rules, power: bool) -> None:
    cluster = cluster_of(4, rounds=3, seed=9, rules=rules)
    tap = MessageTap(cluster)
    run_until(cluster, lambda: all(len(tap.of(member, Vote)) > 12 for member in range(4)))
    views = [participant(cluster, member).replica.record.last_voted_view for member in range(4)]
    for member in range(4):
        cluster.crash(NodeId(member), downtime_s=1.0, power=power)
    run_until(cluster, lambda: all(node.alive for node in cluster.nodes))
    restarted = [participant(cluster, m).replica.record.last_voted_view for m in range(4)]

    assert all(after >= before for before, after in zip(views, restarted, strict=True))
    finish(cluster)


def test_aggregates_lost_by_all_nodes_before_a_sync_are_recomputed() -> None:
    """Each author still has its update; no node needs to have kept the model."""
    cluster = cluster_of(4, rounds=3, seed=6, conditions=Conditions(work_sigma=0.1))

    def models() -> list[Digest | None]:
        held = [dict(node.disk.models).get(Round(1)) for node in cluster.nodes]
        return [model.digest if model is not None else None for model in held]

    run_until(cluster, lambda: None not in models())
    digests = models()
    for node in cluster.nodes:
        cluster.crash(node.id, downtime_s=1.0, power=True)
    for node, digest in zip(cluster.nodes, digests, strict=True):
        assert digest is not None
        node.disk.drop(digest)  # some syncs may have been quicker than the power cut
    run_until(cluster, lambda: all(node.alive for node in cluster.nodes))

    cluster.run(until=lambda: all(participant(cluster, m).state.round >= 2 for m in range(4)))
    assert models() == digests
    finish(cluster)


@pytest.mark.parametrize("power", [False, True])
def test_an_author_killed_after_one_peer_acked_offers_the_same_blob_again(power: bool) -> None:
    """It must not train again: two blobs for one round would be equivocation."""
    cluster = cluster_of(4, rounds=2, seed=4)
    author = NodeId(1)
    tap = MessageTap(cluster)
    acks = 0

    def one_ack_passes(_source: NodeId, target: NodeId, message: Message) -> bool:
        nonlocal acks
        if target == author and isinstance(message, StoreAck):
            acks += 1
            return acks > 1
        return False

    tap.lose = one_ack_passes
    run_until(cluster, lambda: acks >= 1)
    first = tap.of(author, Offer)[0]
    assert isinstance(first, Offer)
    cluster.crash(author, downtime_s=1.0, power=power)
    tap.lose = lambda _s, _t, _m: False
    finish(cluster)

    offered = {m.manifest.digest for m in tap.of(author, Offer) if m.round == first.round}
    assert offered == {first.manifest.digest}


def test_a_restarted_author_does_not_retrain_a_round_it_offered() -> None:
    cluster = cluster_of(4, rounds=2, seed=4)
    author = NodeId(1)
    tap = MessageTap(cluster)
    run_until(cluster, lambda: bool(tap.of(author, Offer)))
    trained = []
    work_takes_s = cluster._work_takes_s

    def watch(node, work):
        if node.id == author and isinstance(work, Train):
            trained.append(work.round)
        return work_takes_s(node, work)

    cluster._work_takes_s = watch
    cluster.crash(author, downtime_s=1.0, power=False)
    finish(cluster)

    assert trained == [2]


def test_the_last_agg_before_the_last_update_closes_the_round_with_that_update() -> None:
    """AGG votes are recorded, so the update that completes the round closes it at once."""
    cluster = cluster_of(4, rounds=1, seed=6)
    late = {NodeId(2), NodeId(3)}
    tap = MessageTap(cluster)
    # Two members' offers are dropped until every wait is over.
    tap.lose = lambda source, _t, message: source in late and isinstance(message, Offer)
    run_until(cluster, lambda: len(participant(cluster, 0).state.current) == 2)
    all_vote_now(cluster, 1)
    run_until(cluster, lambda: len(participant(cluster, 0).state.voters) == 4)
    assert cluster.rounds_closed == 0
    tap.lose = lambda _s, _t, _m: False
    finish(cluster)

    closed = participant(cluster, 0).state.closed[-1]
    assert len(closed.updates) == 3


@BOTH_RULES
def test_idle_nodes_send_the_last_qc_to_a_node_that_missed_it(rules: Rules) -> None:
    cluster = cluster_of(4, rounds=1, seed=3, rules=rules)
    lone = NodeId(2)
    tap = MessageTap(cluster)
    run_until(cluster, lambda: len(participant(cluster, 0).state.current) >= 2)
    # From here on the lone node receives no votes, so it cannot form the QCs that let the others
    # idle.
    tap.lose = lambda _s, target, message: target == lone and isinstance(message, Vote | Proposal)
    others = [NodeId(m) for m in range(4) if m != lone]

    def others_are_idle() -> bool:
        return all(participant(cluster, m).replica.wake_at is None for m in others)

    run_until(cluster, others_are_idle)
    assert participant(cluster, lone).replica.record.high_qc.view < max(
        participant(cluster, m).replica.record.high_qc.view for m in others
    )
    run_until(
        cluster,
        lambda: len({participant(cluster, m).replica.record.high_qc.view for m in range(4)}) == 1,
    )
    answered = [m for s, t, m in tap.messages if t == lone and isinstance(m, Certificates)]
    assert answered
    finish(cluster)


def test_three_blocks_committed_at_once_with_a_round_close_in_the_first() -> None:
    """A node that catches up commits several blocks in one event and executes each of them."""
    cluster = cluster_of(4, rounds=2, seed=12)
    behind = NodeId(3)
    most = 0
    committed = cluster.checker.committed

    def count(node: NodeId, blocks):
        nonlocal most
        if node == behind and any(b.block.transactions for b in blocks):
            most = max(most, len(blocks))
        committed(node, blocks)

    cluster.checker.committed = count
    run_until(cluster, lambda: len(participant(cluster, 0).state.current) == 1)
    held: list[Proposal] = []

    def hold_one_proposal(source: NodeId, target: NodeId, message: Message) -> bool:
        if isinstance(message, BlockRequest) and source == behind:
            return True  # no other path for it
        if isinstance(message, Proposal) and target == behind and not held:
            held.append(message)
            return True
        return False

    cluster.traffic.censor = hold_one_proposal
    run_until(cluster, lambda: participant(cluster, 0).state.round == 1)
    cluster.traffic.censor = None
    event = Received(held[0].block.header.author, held[0])
    cluster.nodes[behind].handle(event)
    finish(cluster)

    assert most >= 3


def test_a_dead_authors_transaction_is_relayed_by_the_one_node_that_received_it() -> None:
    cluster = cluster_of(4, rounds=1, seed=10)
    author, relay = NodeId(1), NodeId(3)
    tap = MessageTap(cluster)

    def only_relay_receives(source: NodeId, target: NodeId, message: Message) -> bool:
        if source != author:
            return False
        if isinstance(message, Gossip):
            return target != relay
        # Nor does a block of its own carry the transaction.
        return isinstance(message, Proposal)

    tap.lose = only_relay_receives
    run_until(cluster, lambda: bool(tap.of(author, Gossip)))
    gossip = tap.of(author, Gossip)[0]
    assert isinstance(gossip, Gossip)
    run_until(cluster, lambda: any(t == relay for s, t, m in tap.messages if m is gossip))
    run_until(cluster, lambda: participant(cluster, relay).replica.stored["transactions"] > 0)
    cluster.crash(author, downtime_s=10_000.0, power=False)
    run_until(cluster, lambda: participant(cluster, 0).state.round == 1)

    closed = participant(cluster, 0).state.closed[-1]
    tx = gossip.transactions[0]
    assert isinstance(tx, Upd | Agg)
    assert author in {ref.author for ref in closed.updates}


def test_a_node_without_a_safety_record_follows_and_signs_nothing() -> None:
    cluster = cluster_of(4, rounds=4, seed=2)
    lost = NodeId(2)
    run_until(cluster, lambda: cluster.rounds_closed == 1)
    cluster.crash(lost, downtime_s=0.5, power=False)
    cluster.nodes[lost].disk.record = None
    tap = MessageTap(cluster)
    run_until(cluster, lambda: participant(cluster, 0).state.round == 4)
    run_until(cluster, lambda: participant(cluster, lost).state.round == 4)

    signed = [m for m in tap.messages if m[0] == lost and isinstance(m[2], Vote | Timeout | Offer)]
    assert signed == []
    assert participant(cluster, lost).replica.observing is not None


def test_a_node_that_receives_its_own_later_signature_stops_signing() -> None:
    """Its disk was rolled back to an old copy, but the log contains what it signed since."""
    cluster = cluster_of(4, rounds=4, seed=2)
    rolled = NodeId(2)
    run_until(cluster, lambda: participant(cluster, rolled).replica.view > 5)
    old_copy = deepcopy(cluster.nodes[rolled].disk)
    run_until(cluster, lambda: cluster.rounds_closed == 1)
    cluster.crash(rolled, downtime_s=0.5, power=False)
    cluster.nodes[rolled].disk = old_copy
    notices = []
    cluster.checker.notice = lambda node, notice, *_: notices.append((node, notice))
    run_until(cluster, lambda: participant(cluster, 0).state.round == 4)

    assert any(node == rolled and isinstance(notice, Observing) for node, notice in notices)


def test_a_node_behind_the_pruned_log_catches_up_from_a_proven_snapshot() -> None:
    cluster = cluster_of(4, rounds=12, seed=7)
    away = NodeId(0)
    tap = MessageTap(cluster)
    run_until(cluster, lambda: cluster.rounds_closed == 1)
    cluster.crash(away, downtime_s=40.0, power=True)
    finish(cluster)

    assert [m for s, t, m in tap.messages if t == away and type(m).__name__ == "Snapshot"]
    assert any(isinstance(m, BlockRequest) for m in tap.of(away, BlockRequest))
    assert participant(cluster, away).state.round == Round(12)


def test_a_node_restored_from_a_snapshot_has_the_same_closed_rounds_as_the_others() -> None:
    """The memory is in the model that the ledger names: the checker compares every model."""
    cluster = cluster_of(4, rounds=12, seed=7)
    away = NodeId(0)
    tap = MessageTap(cluster)
    run_until(cluster, lambda: cluster.rounds_closed == 1)
    cluster.crash(away, downtime_s=40.0, power=True)
    finish(cluster)

    assert [m for s, t, m in tap.messages if t == away and type(m).__name__ == "Snapshot"]
    federation = cluster.federation
    last = [participant(cluster, member).client.model(Round(12)) for member in range(4)]
    assert last[0] is not None
    assert last == [last[0]] * 4
    payload = cluster.nodes[away].disk.read(last[0].digest)
    memory = model_row(federation, payload)[federation.schema.columns(Role.MEMORY)[0]]
    assert all(memory[1:4] > 1), "the three members present have a good reputation"


def test_the_same_seed_reproduces_the_same_run() -> None:
    def fingerprint() -> tuple[object, ...]:
        cluster = cluster_of(4, rounds=4, seed=11, conditions=Conditions(loss=0.1, crash_rate=0.01))
        cluster.run()
        head = participant(cluster, 0).replica.head
        return cluster.events, cluster.now, head.id, sorted(cluster.traffic.messages.items())

    assert fingerprint() == fingerprint()


def test_an_idle_federation_sends_nothing() -> None:
    """Once the last round is closed and proven, no consensus timer runs anywhere."""
    cluster = cluster_of(4, rounds=1, seed=4)
    run_until(
        cluster,
        lambda: (
            cluster.rounds_closed == 1
            and all(participant(cluster, m).replica.wake_at is None for m in range(4))
        ),
    )
    views = [participant(cluster, m).replica.view for m in range(4)]
    cluster.run()
    assert [participant(cluster, m).replica.view for m in range(4)] == views


def test_an_observer_stays_one_across_restarts() -> None:
    """Once it has seen its own later signature, it must not forget that and sign again."""
    cluster = cluster_of(4, rounds=6, seed=2)
    rolled = NodeId(2)
    run_until(cluster, lambda: participant(cluster, rolled).replica.view > 5)
    old_copy = deepcopy(cluster.nodes[rolled].disk)
    run_until(cluster, lambda: cluster.rounds_closed == 1)
    cluster.crash(rolled, downtime_s=0.5, power=False)
    cluster.nodes[rolled].disk = old_copy

    def observes_with_nothing_left_to_write() -> bool:
        node = cluster.nodes[rolled]
        observing = node.behaviour.participant.replica.observing is not None
        return node.alive and observing and node.driver._duty.settled

    run_until(cluster, observes_with_nothing_left_to_write)
    cluster.crash(rolled, downtime_s=0.5, power=False)
    tap = MessageTap(cluster)
    run_until(cluster, lambda: participant(cluster, 0).state.round == 6)

    assert participant(cluster, rolled).replica.observing is not None
    assert not tap.of(rolled, Vote)
    assert not tap.of(rolled, Timeout)


def test_an_observer_does_not_answer_every_timeout_with_a_broadcast() -> None:
    cluster = cluster_of(4, rounds=2, seed=2)
    run_until(cluster, lambda: cluster.rounds_closed == 1)
    node = cluster.nodes[2]
    cluster.crash(node.id, downtime_s=0.5, power=False)
    node.disk.record = None
    run_until(cluster, lambda: node.alive)
    view = participant(cluster, 2).replica.view
    qc = participant(cluster, 2).replica.record.high_qc
    timeouts = [Timeout(0, view, qc, None, NodeId(author), bytes(64)) for author in (0, 1)]
    sent = [
        node.behaviour.handle(Received(timeout.author, timeout), cluster.now).send
        for timeout in timeouts * 20
    ]

    assert sum(len(items) for items in sent) <= 2


def test_evidence_survives_a_restart() -> None:
    cluster = cluster_of(4, rounds=3, seed=3, byzantine={NodeId(1): KINDS["double-voter"]})
    run_until(cluster, lambda: bool(cluster.nodes[0].disk.evidence))
    evidence = list(cluster.nodes[0].disk.evidence)
    cluster.crash(NodeId(0), downtime_s=0.5, power=True)
    run_until(cluster, lambda: cluster.nodes[0].alive)

    assert set(evidence) <= set(participant(cluster, 0).evidence)


def test_blobs_of_the_grace_round_survive_a_restart() -> None:
    cluster = cluster_of(4, rounds=6, seed=3)
    run_until(cluster, lambda: cluster.rounds_closed == 5)
    before = set(participant(cluster, 0).pool.labels)
    assert any(round_ == 5 - 2 and author is not None for round_, author in before)
    cluster.crash(NodeId(0), downtime_s=0.1, power=False)
    run_until(cluster, lambda: cluster.nodes[0].alive)

    assert {label for label in before if label[0] <= 5} <= set(participant(cluster, 0).pool.labels)


def test_answers_to_block_requests_are_rate_limited_per_peer() -> None:
    cluster = cluster_of(4, rounds=2, seed=3)
    run_until(cluster, lambda: cluster.rounds_closed == 1)
    replica = participant(cluster, 0).replica
    request = BlockRequest(replica.record.high_qc.block, type(replica.head.height)(0))
    node = cluster.nodes[0]
    answers: list[type[Message]] = []
    later = cluster.now + 10  # all earlier requests have been answered by then
    for _ in range(100):
        sent = node.behaviour.handle(Received(NodeId(3), request), later).send
        answers += [type(item.message) for item in sent if not isinstance(item, ServeChunk)]

    limit = SNAPSHOTS_PER_PERIOD_MAX if Snapshot in answers else BLOCK_ANSWERS_PER_PERIOD_MAX
    assert sum(answer in (Blocks, Snapshot) for answer in answers) == limit


def test_an_author_that_lost_its_offer_adopts_the_one_a_peer_shows_it() -> None:
    """The adopted offer is durable, so no later restart offers another one."""
    cluster = cluster_of(4, rounds=2, seed=4)
    tap = MessageTap(cluster)
    run_until(cluster, lambda: bool(tap.of(1, Offer)))
    offer = tap.of(1, Offer)[0]
    fresh = cluster_of(4, rounds=2, seed=4)
    output = fresh.nodes[1].behaviour.handle(Received(NodeId(0), offer), 0.0)

    assert output.persist is not None
    assert output.persist.offer == offer
    assert fresh.nodes[1].behaviour.participant.pool.offer_for(Round(1)) == offer


@BOTH_RULES
def test_n_minus_f_updates_with_different_bases_do_not_close_a_round(rules: Rules) -> None:
    """Certified and committed, but with another base: the round waits for an honest update."""
    liar, slow = NodeId(1), NodeId(3)
    elsewhere = digest_of(b"another model")
    cluster: Cluster

    class OtherBase(Honest):
        def handle(self, event: Event, now: float) -> Output:
            if not isinstance(event, Trained):
                return self.participant.handle(event, now)
            manifest = replace(event.manifest, base=elsewhere)
            cluster.nodes[liar].disk.store_blob(
                manifest, cluster.nodes[liar].disk.read(event.manifest.digest), 4096
            )
            self.participant.pool.muted = False  # skips asking the other members first
            self.participant.pool.publish(event.round, manifest)
            return self.participant.handle(Tick(), now)

    wrap = {liar: lambda participant, _signer, _rng: OtherBase(participant)}
    cluster = cluster_of(4, rounds=1, seed=3, rules=rules, byzantine=wrap)
    tap = MessageTap(cluster)
    tap.lose = lambda source, _t, message: source == slow and isinstance(message, Offer)
    run_until(cluster, lambda: len(participant(cluster, 0).state.current) == 3)
    all_vote_now(cluster, 1)
    run_until(cluster, lambda: len(participant(cluster, 0).state.voters) == 4)
    assert {ref.base for ref in participant(cluster, 0).state.current} >= {elsewhere}
    assert cluster.rounds_closed == 0, "n - f updates and all AGGs, but only two of one base"
    tap.lose = lambda _s, _t, _m: False
    finish(cluster)

    closed = participant(cluster, 0).state.closed[-1]
    assert [ref.author for ref in closed.updates] == [0, 2, 3]
    assert closed.base == cluster.federation.initial
