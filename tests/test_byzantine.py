"""Each Byzantine kind really misbehaves, and n nodes with f of them still pass every check."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice, pairwise
from random import Random

import pytest

from defl.committee import Rules
from defl.ids import Digest, NodeId
from defl.messages import (
    TRANSACTIONS_PER_MEMBER,
    Agg,
    Certificates,
    Chunk,
    ChunkRequest,
    Evidence,
    Gossip,
    Message,
    Offer,
    Proposal,
    Snapshot,
    Statements,
    StoreAck,
    Timeout,
    Upd,
    Vote,
)
from defl.output import EvidenceFound, Notice, PeerMisbehaved, RoundClosed
from defl.participant import Participant
from defl.pool.pool import Pool
from defl.sim import verdicts
from defl.sim.byzantine import KINDS
from defl.sim.byzantine.changing import Changing
from defl.sim.byzantine.costly import UPD_FRAMES, Exhauster
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions, Kill
from defl.sim.scenario import cluster_of
from defl.sim.transcript import Transcript
from support.builders import Small

LIAR = NodeId(1)
FRIEND = NodeId(2)
BOTH_RULES = pytest.mark.parametrize("rules", list(Rules))


class Recording(Transcript):
    """Records all messages and notices, to search them afterwards."""

    def __init__(self) -> None:
        super().__init__([].append)
        self.messages: list[tuple[float, NodeId, NodeId, Message]] = []
        self.noticed: list[tuple[float, NodeId, Notice]] = []

    def message(self, now: float, source: NodeId, target: NodeId, message: Message) -> None:
        self.messages.append((now, source, target, message))

    def notice(self, now: float, node: NodeId, notice: Notice) -> None:
        self.noticed.append((now, node, notice))

    def of(self, source: NodeId, kind: type[Message]) -> list[tuple[float, NodeId, Message]]:
        return [
            (at, to, m) for at, by, to, m in self.messages if by == source and isinstance(m, kind)
        ]

    def transactions_of(self, source: NodeId) -> Iterator[tuple[float, Upd | Agg]]:
        for at, _, gossip in self.of(source, Gossip):
            for tx in gossip.transactions:
                if tx.author == source:
                    yield at, tx

    def closed(self) -> dict[int, tuple[NodeId, ...]]:
        return {n.round: n.updates for _, _, n in self.noticed if isinstance(n, RoundClosed)}

    def reasons(self, accused: NodeId) -> list[str]:
        notices = [n for _, _, n in self.noticed if isinstance(n, PeerMisbehaved)]
        return [notice.reason for notice in notices if notice.peer == accused]


def run_with(
    kind: str,
    rules: Rules,
    *,
    nodes: int = 4,
    liars: tuple[int, ...] = (LIAR,),
    rounds: int = 3,
    seed: int = 1,
    conditions: Conditions = Conditions(),  # noqa: B008 - frozen
) -> tuple[Cluster, Recording]:
    """A whole run with these liars, in which all rounds closed and every check held."""
    recording = Recording()
    cluster = cluster_of(
        nodes,
        rounds=rounds,
        seed=seed,
        rules=rules,
        conditions=conditions,
        byzantine={NodeId(liar): KINDS[kind] for liar in liars},
        transcript=recording,
    )
    cluster.run()

    assert cluster.conclude() == []
    assert cluster.rounds_closed == rounds
    accused = {evidence.first.author for evidence in evidence_of(recording)}
    assert accused <= set(liars), "no honest member is accused"
    return cluster, recording


def evidence_of(recording: Recording) -> list[Evidence]:
    return [n.evidence for _, _, n in recording.noticed if isinstance(n, EvidenceFound)]


def evidence_in(cluster: Cluster) -> Counter[tuple[str, NodeId]]:
    """Kind and author of the evidence that honest nodes hold."""
    return Counter(
        (type(evidence.first).__name__, evidence.first.author)
        for node in cluster.honest
        for evidence in node.behaviour.participant.evidence
    )


def test_every_byzantine_kind_has_a_name() -> None:
    assert list(KINDS) == [
        "silent",
        "slow",
        "equivocator",
        "double-voter",
        "forger",
        "yes-voter",
        "withholder",
        "late-withholder",
        "braggart",
        "two-faced",
        "malformed",
        "recall-staller",
        "wrong-round",
        "early-agg",
        "replayer",
        "flooder",
        "claiming",
        "just-late",
        "alternating",
        "staggered",
        "silent-then-claiming",
        "imitating",
        "stalling",
        "exhauster",
        "rewinder",
        "height-liar",
        "agitator",
        "usurper",
        "revenant",
        "suffixer",
        "changing",
    ]


@BOTH_RULES
def test_rounds_close_without_a_silent_node(rules: Rules) -> None:
    _, recording = run_with("silent", rules)

    assert not [sent for sent in recording.messages if sent[1] == LIAR]
    assert all(updates == (0, 2, 3) for updates in recording.closed().values())


@BOTH_RULES
def test_a_slow_node_delays_rounds_but_does_not_stop_them(rules: Rules) -> None:
    """How much depends on the seed: which views it leads, and how long the others train."""
    honest_s = slow_s = 0.0
    for seed in range(4):
        honest = cluster_of(4, rounds=3, rules=rules, seed=seed)
        honest.run()
        cluster, recording = run_with("slow", rules, seed=seed)
        honest_s += honest.checker.closed_at[3]
        slow_s += cluster.checker.closed_at[3]

        assert recording.of(LIAR, Vote), "it does take part"
        assert [sent for sent in recording.messages if isinstance(sent[3], Timeout)]
    assert slow_s > 1.2 * honest_s


@BOTH_RULES
def test_an_equivocating_leader_loses_only_its_own_views_and_leaves_evidence(rules: Rules) -> None:
    cluster, recording = run_with("equivocator", rules)

    blocks = defaultdict(set)
    for _, to, proposal in recording.of(LIAR, Proposal):
        blocks[proposal.block.view].add((proposal.block.id, to))
    for proposed in blocks.values():
        assert len({block for block, _ in proposed}) == 2
        first = {to for block, to in proposed if block == min(proposed)[0]}
        assert first != {0, 2, 3}, "each half gets its own"
    assert blocks
    # Peer 2 is in both halves, receives both, and broadcasts the evidence.
    assert evidence_in(cluster)["SignedHeader", LIAR] == 3


@BOTH_RULES
def test_two_equivocators_among_seven_cannot_split_the_honest_nodes(rules: Rules) -> None:
    _, recording = run_with("equivocator", rules, nodes=7, liars=(1, 4), rounds=2)

    for liar in (1, 4):
        proposals = {(p.block.view, p.block.id) for _, _, p in recording.of(NodeId(liar), Proposal)}
        assert len(proposals) == 2 * len({view for view, _ in proposals}) > 0


@BOTH_RULES
@pytest.mark.parametrize(("nodes", "liars"), [(4, (1,)), (7, (1, 4))])
def test_a_second_vote_becomes_evidence_and_is_not_counted(
    rules: Rules, nodes: int, liars: tuple[int, ...]
) -> None:
    cluster, _ = run_with("double-voter", rules, nodes=nodes, liars=liars)

    evidence = evidence_in(cluster)
    assert all(evidence["Vote", NodeId(liar)] == len(cluster.honest) for liar in liars)


@BOTH_RULES
def test_ingress_refuses_forged_certificates(rules: Rules) -> None:
    cluster, recording = run_with("forger", rules, rounds=5)

    assert cluster.traffic.faults_refused["BadCertificate"] > 100
    assert cluster.traffic.faults_refused["BadSignature"] > 100
    reasons = " / ".join(recording.reasons(LIAR))
    for forgery in (
        "a QC of 2 distinct members, 3 are needed",
        "a QC of 1 members with 3 signatures",
        "a QC names members that do not exist",
        "a vote in a QC that member",
        "a TC of 2 distinct members, 3 are needed",
        "a TC of 1 members with 3 signatures",
        "a timeout in a TC that member",
        "a TC must carry the QC of its signers' maximum view",
        "an availability certificate of 2 distinct members, 3 are needed",
        "an availability certificate of 1 members with 3 signatures",
        "a store-ack that member",
    ):
        assert forgery in reasons
    forged = {m.qc.view for _, _, m in recording.of(LIAR, Certificates)}
    assert max(forged) > 0
    # A quorum's view is at most one beyond the newest proposed block.
    newest = max(
        m.block.view for _, by, _, m in recording.messages if by != LIAR and _is_proposal(m)
    )
    assert all(node.behaviour.participant.replica.view <= newest + 2 for node in cluster.honest)


def _is_proposal(message: Message) -> bool:
    return isinstance(message, Proposal)


@BOTH_RULES
def test_a_leader_with_a_wrong_state_root_or_stale_qc_gets_no_votes(rules: Rules) -> None:
    _, recording = run_with("forger", rules, rounds=6)

    truth = {p.block.header.committed: p.block.header.state_root
             for by in (0, 2, 3) for _, _, p in recording.of(NodeId(by), Proposal)}  # fmt: skip
    bad = {
        p.block.id
        for _, _, p in recording.of(LIAR, Proposal)
        if truth.get(p.block.header.committed, p.block.header.state_root)
        != p.block.header.state_root
    }
    assert bad, "it proposed a false state"
    voted = {m.block for _, by, _, m in recording.messages if by != LIAR and isinstance(m, Vote)}
    assert not bad & voted


@BOTH_RULES
def test_voting_for_every_block_even_after_a_timeout_changes_nothing(rules: Rules) -> None:
    """Node 2's messages take ten times as long, so views time out before they arrive."""
    late = Conditions(slow=frozenset({NodeId(2)}), latency_s=0.12, jitter_s=0.05)
    _, recording = run_with("yes-voter", rules, conditions=late)

    given_up = {timeout.view: at for at, _, timeout in reversed(recording.of(LIAR, Timeout))}
    after = [v for at, _, v in recording.of(LIAR, Vote) if given_up.get(v.view, at) < at]
    assert after


@BOTH_RULES
def test_a_yes_voter_equivocates_when_a_double_voter_names_two_blocks(rules: Rules) -> None:
    recording = Recording()
    liars = {NodeId(1): KINDS["yes-voter"], NodeId(4): KINDS["double-voter"]}
    cluster = cluster_of(7, rounds=2, rules=rules, byzantine=liars, transcript=recording)
    cluster.run()

    assert cluster.conclude() == []
    votes = {(vote.view, vote.block) for _, _, vote in recording.of(LIAR, Vote)}
    assert len(votes) > len({view for view, _ in votes})
    assert evidence_in(cluster)["Vote", LIAR] == 5


def _blobs_of(cluster: Cluster, author: NodeId) -> set[Digest]:
    labels = cluster.nodes[author].behaviour.participant.pool.labels
    return {digest for (_, named), digest in labels.items() if named == author}


@BOTH_RULES
def test_blobs_that_a_withholder_acked_but_does_not_serve_are_fetched_elsewhere(
    rules: Rules,
) -> None:
    """Node 0's blobs do not reach node 3 directly, nor from node 2 before it has asked the liar."""
    recording = Recording()
    liars = {LIAR: KINDS["withholder"]}
    cluster = cluster_of(4, rounds=3, rules=rules, byzantine=liars, transcript=recording)
    asked: set[Digest] = set()

    def lose(source: NodeId, target: NodeId, message: Message) -> bool:
        if (source, target) == (3, LIAR) and isinstance(message, ChunkRequest):
            asked.add(message.digest)
        if target == 3 and source == 2 and isinstance(message, Chunk):
            return message.digest in _blobs_of(cluster, NodeId(0)) - asked
        return (source, target) == (0, 3) and isinstance(message, Offer | Chunk)

    cluster.traffic.censor = lose
    cluster.run()

    assert cluster.conclude() == []
    offers = {offer.round: offer.manifest.digest for _, _, offer in recording.of(LIAR, Offer)}
    served = {chunk.digest for _, _, chunk in recording.of(LIAR, Chunk)}
    assert served <= set(offers.values()), "it serves no blob of another member"
    acked = {ack.digest for _, _, ack in recording.of(LIAR, StoreAck)}
    requested = {
        r.digest for _, _, to, r in recording.messages if to == LIAR and _is_chunk_request(r)
    }
    assert requested & acked, "it acked the blobs that it was asked for"
    for round_ in offers:
        shown_to = {to for _, to, offer in recording.of(LIAR, Offer) if offer.round == round_}
        assert len(shown_to) == 2, "it offers its own blob to q - 1 peers"
    # The third peer also got the withheld blob, from those that acknowledged it.
    newest = cluster.honest[0].behaviour.participant.state.last
    assert newest is not None
    for ref in newest.updates:
        assert all(ref.digest in node.disk.blobs for node in cluster.honest)


def _is_chunk_request(message: Message) -> bool:
    return isinstance(message, ChunkRequest)


@BOTH_RULES
@pytest.mark.parametrize(("nodes", "liars"), [(4, (1,)), (7, (1, 4))])
def test_at_most_one_of_two_blobs_for_a_round_is_certified(
    rules: Rules, nodes: int, liars: tuple[int, ...]
) -> None:
    cluster, recording = run_with("two-faced", rules, nodes=nodes, liars=liars)

    for liar in map(NodeId, liars):
        offers = {(o.round, o.manifest.digest) for _, _, o in recording.of(liar, Offer)}
        assert len(offers) == 2 * len({round_ for round_, _ in offers}) > 0
        upds = {(tx.round, tx.digest) for _, tx in recording.transactions_of(liar) if _is_upd(tx)}
        assert len(upds) == len({round_ for round_, _ in upds})
    if nodes == 4:  # the peer in the middle sees both
        assert evidence_in(cluster)["Offer", LIAR] == 3


def _is_upd(tx: Upd | Agg) -> bool:
    return isinstance(tx, Upd)


@BOTH_RULES
def test_a_malformed_update_is_never_acknowledged(rules: Rules) -> None:
    cluster, recording = run_with("malformed", rules, rounds=12)

    size = 4 * cluster.federation.schema.values
    reasons = " / ".join(recording.reasons(LIAR))
    assert reasons.count("holds NaN, infinity or a value beyond") >= 2 * 3  # NaN, and huge
    assert "the manifest is of another schema" in reasons
    assert f"the manifest says {size + 4} bytes, the schema makes {size}" in reasons
    assert "is not the one that the manifest names" in reasons  # truncated, and too long
    assert not [ack for _, _, _, ack in recording.messages if _acks_for(ack, LIAR)]
    assert all(LIAR not in updates for updates in recording.closed().values())


def _acks_for(message: Message, author: NodeId) -> bool:
    return isinstance(message, StoreAck) and message.author == author


@BOTH_RULES
def test_an_update_for_another_round_is_refused_or_ignored(rules: Rules) -> None:
    cluster, recording = run_with("wrong-round", rules, rounds=5)

    closed_at = cluster.checker.closed_at
    upds = [(at, tx) for at, tx in recording.transactions_of(LIAR) if isinstance(tx, Upd)]
    past = [tx for at, tx in upds if closed_at.get(tx.round, at) < at]
    future = [tx for at, tx in upds if tx.round > 1 and closed_at.get(tx.round - 1, at + 1) > at]
    assert past
    assert future
    assert cluster.traffic.faults_refused["BadSignature"] >= 4, "certificates of other rounds"
    proposed = [
        (proposal.block.view, tx.round)
        for _, _, proposal in recording.of(LIAR, Proposal)
        for tx in proposal.block.transactions
        if tx in past
    ]
    assert proposed, "as leader it proposed for closed rounds"


@BOTH_RULES
@pytest.mark.parametrize(("nodes", "liars"), [(4, (1,)), (7, (1, 4))])
def test_early_aggs_shut_no_honest_node_out(
    rules: Rules, nodes: int, liars: tuple[int, ...]
) -> None:
    steady = Conditions(work_sigma=0.1)  # no member is late by chance
    cluster, recording = run_with("early-agg", rules, nodes=nodes, liars=liars, conditions=steady)

    closed_at = {0: 0.0, **cluster.checker.closed_at}
    for round_, updates in recording.closed().items():
        times = [at for at, tx in recording.transactions_of(LIAR) if tx == _agg(tx, round_)]
        not_before = closed_at[round_ - 1] + cluster.federation.timing.gst_lt_min_s
        early = [at for at in times if at < not_before]
        assert len(early) > 3, "again and again, before its timer"
        assert {node.id for node in cluster.honest} <= set(updates)


def _agg(tx: Upd | Agg, round_: int) -> Agg | None:
    return tx if isinstance(tx, Agg) and tx.round == round_ else None


@BOTH_RULES
def test_statements_replayed_from_other_epochs_and_federations_are_refused(rules: Rules) -> None:
    cluster, recording = run_with("replayer", rules)

    assert cluster.traffic.faults_refused["WrongEpoch"] > 10
    assert cluster.traffic.faults_refused["BadSignature"] > 10, "of another federation"
    assert cluster.traffic.faults_refused["WrongAuthor"] > 10, "others' votes"
    views = [vote.view for _, to, vote in recording.of(LIAR, Vote) if to == 0 and vote.epoch == 0]
    assert any(later < earlier for earlier, later in pairwise(views))


@BOTH_RULES
def test_a_flood_is_refused_or_bounded(rules: Rules) -> None:
    cluster, recording = run_with("flooder", rules, rounds=2)

    honest = max(Counter(by for _, by, _, _ in recording.messages if by != LIAR).values())
    assert sum(by == LIAR for _, by, _, _ in recording.messages) > 2 * honest
    assert cluster.traffic.faults_refused["Malformed"] > 100, "bytes that do not decode"
    reasons = " / ".join(recording.reasons(LIAR))
    for rubbish in ("bytes, at most", "not a message", "not in canonical form"):
        assert rubbish in reasons
    bounds = {name: amount for name, amount in cluster.checker.largest.items() if amount}
    assert bounds["statements"] > 3 * 4 * 4, "it did fill its quota"


@pytest.mark.parametrize("kind", ["silent", "malformed"])
def test_rounds_close_without_the_updates_of_two_of_seven(kind: str) -> None:
    _, recording = run_with(kind, Rules.HOTSTUFF, nodes=7, liars=(1, 4), rounds=2)

    assert recording.closed() == {1: (0, 2, 3, 5, 6), 2: (0, 2, 3, 5, 6)}


def start_late(seed: int, rules: Rules, recording: Recording | None = None) -> Cluster:
    """Node 3 starts late, so the liar's answer decides when nodes 0 and 2 may sign. A check takes
    long enough that it can answer meanwhile."""
    cluster = cluster_of(
        4,
        rounds=2,
        seed=seed,
        rules=rules,
        conditions=Conditions(work_s=4.0, jitter_s=0.002),
        byzantine={LIAR: KINDS["recall-staller"]},
        transcript=recording,
    )
    cluster.crash(NodeId(3), downtime_s=10.0, power=False)
    cluster.run()
    cluster.conclude()
    return cluster


@BOTH_RULES
@pytest.mark.parametrize("seed", range(4))
def test_a_member_that_ends_the_recall_when_it_likes_gets_no_ack_for_a_malformed_update(
    seed: int, rules: Rules
) -> None:
    recording = Recording()
    cluster = start_late(seed, rules, recording)

    assert cluster.checker.violations == []
    assert cluster.rounds_closed == 2
    assert all("NaN" in reason for reason in recording.reasons(LIAR))
    assert 1 in recording.closed()
    assert LIAR not in recording.closed()[1], "its update is refused"
    for node in (0, 2):
        served, answered = (
            [at for at, to, _ in recording.of(LIAR, kind) if to == node]
            for kind in (Chunk, Statements)
        )
        assert min(served) < min(answered), "it answers once its update is served"


@BOTH_RULES
def test_members_that_restart_acknowledge_no_malformed_update_either(rules: Rules) -> None:
    conditions = Conditions(all_crash_at_s=(1.0, 4.0, 12.0), work_s=2.0)
    _, recording = run_with("recall-staller", rules, conditions=conditions, rounds=4)

    assert any("NaN" in reason for reason in recording.reasons(LIAR))
    assert any(LIAR in authors for authors in recording.closed().values()), "honest when calm"


def acknowledge_what_waited(pool: Pool) -> None:
    """The mistake: the end of the pause takes the place of the check."""
    for offer in pool._offers.values():
        pool._index.mark_checked(offer.manifest.digest)
        pool._acknowledge(offer)


def test_the_checker_detects_a_member_that_acknowledges_what_waited_for_the_recall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Pool, "resume", acknowledge_what_waited)
    failed = {
        check
        for seed in range(6)
        for check, holds in start_late(seed, Rules.HOTSTUFF).checker.verdicts.items()
        if not holds
    }

    # No honest member has the bytes of the certified update any more.
    assert failed == {verdicts.ACKS_OBEY, verdicts.RETRIEVABLE, verdicts.ROUNDS_CLOSE}


@pytest.mark.parametrize("kind", ["slow", "forger", "withholder", "wrong-round", "replayer"])
def test_two_liars_of_each_kind_among_seven_break_nothing(kind: str) -> None:
    _, recording = run_with(kind, Rules.JOLTEON, nodes=7, liars=(1, 4), rounds=2)

    assert {by for _, by, _, _ in recording.messages} == set(range(7))


@pytest.mark.parametrize("kind", list(KINDS))
def test_real_signatures_make_no_difference(kind: str) -> None:
    """The simulator's own signatures cost nothing; the liars do not depend on that."""
    recording = Recording()
    cluster = cluster_of(
        4, rounds=1, byzantine={LIAR: KINDS[kind]}, real_signatures=True, transcript=recording
    )
    cluster.run(until=lambda: cluster.rounds_closed == 1)

    assert cluster.rounds_closed == 1
    assert cluster.checker.violations == []
    lied_to = [sent for sent in recording.messages if sent[1] == LIAR]
    assert bool(lied_to) == (kind not in {"silent", "silent-then-claiming"})


def test_successive_power_cuts_do_not_lose_a_withheld_update() -> None:
    """The liar's update is acknowledged by nodes 2 and 3. Each loses power once, twenty seconds
    apart: time enough for the first to get the bytes back from the second."""
    cluster = cluster_of(4, rounds=2, byzantine={LIAR: KINDS["withholder"]})
    # Updates of 0 and 3 do not spread, so that the round stays open meanwhile.
    cluster.traffic.censor = lambda source, _, message: (
        cluster.now < 60 and source in (0, 3) and isinstance(message, Offer)
    )
    for node, at in ((NodeId(2), 10.0), (NodeId(3), 30.0)):
        cluster.run(until=lambda at=at: cluster.now > at)
        state = cluster.nodes[0].behaviour.participant.state
        assert state.round == 0
        assert state.update_of(LIAR) is not None, "certified and committed"
        cluster.crash(node, power=True, downtime_s=1.0)
    cluster.run(until=lambda: cluster.now > 600)

    assert cluster.conclude() == []


@BOTH_RULES
def test_genuine_old_snapshots_roll_nothing_back(rules: Rules) -> None:
    """Sent to all members constantly, also instead of answers, while nodes crash and restart."""
    cluster, recording = run_with(
        "rewinder", rules, conditions=Conditions(kills=(Kill(FRIEND, 2.0),))
    )

    pushed = [message for _, _, message in recording.of(LIAR, Snapshot)]
    heights = [message.block.height for message in pushed]
    assert min(heights) < max(heights), "old ones again, after newer ones"
    assert heights != sorted(heights)
    assert not cluster.traffic.faults_refused, "every one of them verifies"
    assert recording.of(LIAR, Certificates)


@BOTH_RULES
def test_blocks_with_absurd_heights_cost_only_their_own_view(rules: Rules) -> None:
    _, recording = run_with("height-liar", rules)

    blocks = [message.block for _, _, message in recording.of(LIAR, Proposal)]
    assert max(block.height for block in blocks) > 1000
    honest_votes = {
        message.block
        for _, by, _, message in recording.messages
        if by != LIAR and isinstance(message, Vote)
    }
    assert not honest_votes & {block.id for block in blocks}


@BOTH_RULES
def test_rounds_close_despite_a_liar_that_keeps_changing_kind(rules: Rules) -> None:
    cluster, _ = run_with("changing", rules, rounds=6)

    liar = cluster.nodes[LIAR].behaviour
    assert isinstance(liar, Changing)
    assert len(set(liar.kinds_used)) > 1, liar.kinds_used


def test_an_exhauster_among_31_members_forges_no_more_updates_than_its_frames_hold() -> None:
    """Regression: it made all 44 million quorums, and such a scenario of a soak never ended."""
    small = Small(31, real=False)
    participant = Participant(small.federation, LIAR, small.signers[LIAR], small.durable())
    liar = Exhauster(participant, small.signers[LIAR], Random(1))  # noqa: S311
    offer = small.offer(LIAR, 1, small.blob(1)[0])
    for member in range(31):
        liar._collect(small.ack(member, offer))

    updates = list(islice(liar._updates(), 10_000))

    assert len(updates) == UPD_FRAMES * TRANSACTIONS_PER_MEMBER * 31
    assert len(set(updates)) > 0.9 * len(updates), "ever-changing ackers"
