"""Every check detects its violation, given input with exactly that fault.

Signatures and certificates are in test_checker_signatures.py.
"""

import pytest
from msgspec.structs import replace

from defl.ids import NodeId, Round, View
from defl.messages import (
    Agg,
    Attestation,
    Block,
    Gossip,
    Offer,
    Proposal,
    StoreAck,
    Timeout,
    Vote,
)
from defl.output import (
    Attested,
    Committed,
    ModelReady,
    Observing,
    Reference,
    RoundClosed,
    SafetyBroken,
)
from defl.sim import verdicts
from defl.sim.checks import Checker, views_to_close_max
from defl.sim.cluster import Cluster
from defl.sim.presence import LEFT_OUT_IN_A_ROW_MAX, ROUNDS_TO_LEARN
from defl.sim.scenario import cluster_of
from defl.sim.verdicts import CHECKS
from support.checker_inputs import (
    ALL_CLOSED,
    LIAR,
    MODEL,
    NOISE,
    PAYLOAD,
    UPDATES,
    ParticipantStub,
    checker_of_four,
    closed,
    conclude,
    digest,
    disk,
    failed,
    honest_blocks,
    honest_messages,
    honest_nodes,
    reference,
    upd,
)


@pytest.fixture
def checker() -> Checker:
    return checker_of_four()


@pytest.fixture
def blocks() -> list[Block]:
    return honest_blocks()


def test_a_correct_run_passes_every_check(checker: Checker, blocks: list[Block]) -> None:
    for message in honest_messages():
        if not isinstance(message, Vote | Timeout | Offer | StoreAck | Attestation | Proposal):
            checker.sent(NodeId(0), message)
    for node in range(3):
        checker.committed(NodeId(node), [Committed(block, ()) for block in blocks])

    assert conclude(checker, ALL_CLOSED, ALL_CLOSED) == set()
    assert set(CHECKS) == set(SEEN_BY_A_TEST)


def another_author(block: Block) -> NodeId:
    return NodeId((block.header.author + 1) % 4)


# --- Commits and logs ----------------------------------------------------------------------


def test_two_blocks_committed_at_one_height_are_a_conflict(
    checker: Checker, blocks: list[Block]
) -> None:
    other = Block(replace(blocks[0].header, author=another_author(blocks[0])), ())
    checker.committed(NodeId(0), [Committed(blocks[0], ())])
    checker.committed(LIAR, [Committed(other, ())])
    assert failed(checker) == set(), "a liar's commits do not count"
    checker.committed(NodeId(1), [Committed(other, ())])

    assert failed(checker) == {verdicts.NO_CONFLICTING_COMMITS}


def test_a_nodes_report_of_broken_safety_fails_the_check(checker: Checker) -> None:
    checker.notice(LIAR, SafetyBroken("so it says"), 1.0, ParticipantStub(LIAR, ALL_CLOSED))
    assert failed(checker) == set()
    checker.notice(NodeId(0), SafetyBroken("a fork"), 1.0, ParticipantStub(NodeId(0), ALL_CLOSED))

    assert failed(checker) == {verdicts.NO_CONFLICTING_COMMITS}


def test_a_node_that_replaces_what_it_committed_breaks_the_log(
    checker: Checker, blocks: list[Block]
) -> None:
    """Even if the second block is the right one."""
    other = Block(replace(blocks[0].header, author=another_author(blocks[0])), ())
    checker.committed(NodeId(0), [Committed(blocks[0], ())])
    checker.committed(NodeId(0), [Committed(other, ())])

    assert failed(checker) == {verdicts.SAME_LOG, verdicts.NO_CONFLICTING_COMMITS}


def test_a_node_that_restarts_below_what_it_committed_breaks_the_log(
    checker: Checker, blocks: list[Block]
) -> None:
    checker.committed(NodeId(0), [Committed(block, ()) for block in blocks[:3]])
    checker.restarted(NodeId(0), (0, blocks[2].height))
    assert failed(checker) == set()
    checker.restarted(NodeId(0), (0, blocks[1].height))

    assert failed(checker) == {verdicts.SAME_LOG}


def test_a_block_that_does_not_link_to_the_one_below_breaks_the_log(
    checker: Checker, blocks: list[Block]
) -> None:
    stray = Block(replace(blocks[1].header, parent=digest("nowhere")), ())
    checker.committed(NodeId(0), [Committed(blocks[0], ()), Committed(stray, ())])

    assert failed(checker) == {verdicts.SAME_LOG}


def test_two_states_at_one_height_fail_the_ledger_check(checker: Checker) -> None:
    other = replace(ALL_CLOSED, voters=(NodeId(1),))

    assert conclude(checker, ALL_CLOSED, other) == {verdicts.SAME_LEDGER}


def test_a_round_closed_in_two_ways_fails_the_ledger_check_at_any_height(checker: Checker) -> None:
    one, two = (closed(3, *UPDATES), replace(closed(3, *UPDATES), block=digest("another block")))
    ahead = ParticipantStub(NodeId(1), replace(ALL_CLOSED, closed=(two,)), height=12)
    behind = ParticipantStub(NodeId(0), replace(ALL_CLOSED, closed=(one,)), height=9)
    checker.conclude(honest_nodes([behind, ahead]), rounds_due=True)

    assert failed(checker) == {verdicts.SAME_LEDGER}


# --- Updates and models --------------------------------------------------------------------


def test_a_lost_update_is_detected(checker: Checker) -> None:
    none = disk(whole=False)

    assert conclude(checker, ALL_CLOSED, ALL_CLOSED, disks=(none, disk())) == set()
    assert conclude(checker, ALL_CLOSED, disks=(none,)) == {verdicts.RETRIEVABLE}


def test_other_bytes_do_not_count_as_the_update(checker: Checker) -> None:
    spoilt = disk(data=PAYLOAD[:-1] + b"\xff")

    assert conclude(checker, ALL_CLOSED, disks=(spoilt,)) == {verdicts.RETRIEVABLE}


@pytest.mark.parametrize(
    "updates",
    [
        (*UPDATES[:3], UPDATES[0]),
        UPDATES[:2],
        (*UPDATES[:3], reference(3, MODEL.digest, base=digest("another"))),
    ],
    ids=["two of one author", "fewer than n - f", "mixed bases"],
)
def test_a_round_with_invalid_updates_is_detected(
    checker: Checker, updates: tuple[Reference, ...]
) -> None:
    state = replace(ALL_CLOSED, closed=(closed(3, *updates),))

    assert conclude(checker, state) == {verdicts.ONE_UPDATE}


def test_an_invalid_round_is_detected_when_it_closes(checker: Checker) -> None:
    state = replace(ALL_CLOSED, closed=(closed(3, *UPDATES[:2]),))
    notice = RoundClosed(Round(3), (), ())
    checker.notice(NodeId(0), notice, 1.0, ParticipantStub(NodeId(0), state))

    assert failed(checker) == {verdicts.ONE_UPDATE}


def test_two_committed_updates_of_one_author_are_detected_across_time(checker: Checker) -> None:
    notice = RoundClosed(Round(3), (), ())
    other = (reference(0, digest("b")), *UPDATES[1:])
    checker.notice(NodeId(0), notice, 1.0, ParticipantStub(NodeId(0), ALL_CLOSED))
    state = replace(ALL_CLOSED, closed=(closed(3, *other),))
    checker.notice(NodeId(1), notice, 1.0, ParticipantStub(NodeId(1), state))

    assert failed(checker) == {verdicts.ONE_UPDATE}


def test_two_certified_updates_of_a_liar_are_detected(checker: Checker) -> None:
    checker.sent(NodeId(0), Gossip((upd(1, LIAR, digest("a")),)))
    checker.sent(NodeId(1), Gossip((upd(1, LIAR, digest("a"), (1, 2, 3)),)))
    assert failed(checker) == set(), "other ackers of the same blob are fine"
    checker.sent(NodeId(1), Gossip((upd(1, LIAR, digest("b"), (1, 2, 3)),)))

    assert failed(checker) == {verdicts.ONE_UPDATE}


def test_two_models_of_one_round_are_detected(checker: Checker) -> None:
    participant = ParticipantStub(NodeId(0), ALL_CLOSED)
    for node, name in ((0, "a"), (3, "b"), (1, "a")):
        checker.notice(NodeId(node), ModelReady(Round(2), digest(name)), 1.0, participant)
    assert failed(checker) == set(), "a liar may compute anything"
    checker.notice(NodeId(2), ModelReady(Round(2), digest("b")), 1.0, participant)

    assert failed(checker) == {verdicts.SAME_MODEL}


# --- Progress and bounds -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["UPD", "AGG"])
def test_a_lost_transaction_is_detected(checker: Checker, kind: str) -> None:
    tx = upd(4, 0, digest("a")) if kind == "UPD" else Agg(Round(4), NodeId(0), NOISE)
    checker.sent(NodeId(0), Gossip((tx,)))
    recorded = replace(ALL_CLOSED, current=(reference(0, digest("a")),), voters=(NodeId(0),))

    assert conclude(checker, recorded) == set()
    assert conclude(checker, ALL_CLOSED) == {verdicts.TRANSACTIONS}


def test_a_transaction_whose_round_closed_without_it_is_not_lost(checker: Checker) -> None:
    checker.sent(NodeId(0), Gossip((upd(3, 0, digest("a")),)))

    assert conclude(checker, ALL_CLOSED) == set()


def test_a_node_that_falls_behind_is_detected(checker: Checker) -> None:
    behind = replace(ALL_CLOSED, round=Round(2), closed=(closed(2, *UPDATES),))
    participants = [
        ParticipantStub(NodeId(0), ALL_CLOSED),
        ParticipantStub(NodeId(1), behind, height=5),
    ]
    honest = honest_nodes(participants)
    checker.conclude(honest, rounds_due=False)
    assert failed(checker) == set()
    checker.conclude(honest, rounds_due=True)

    assert failed(checker) == {verdicts.ROUNDS_CLOSE}


@pytest.mark.parametrize(("more", "failures"), [(0, set()), (1, {verdicts.ROUNDS_CLOSE})])
def test_a_round_that_takes_too_many_views_is_detected(
    checker: Checker, more: int, failures: set[str]
) -> None:
    views = (7, 7 + views_to_close_max(4) + more)
    for round_, view in zip((1, 2), views, strict=True):
        participant = ParticipantStub(NodeId(0), ALL_CLOSED, view=view)
        checker.notice(NodeId(0), RoundClosed(Round(round_), (), ()), 1.0, participant)

    assert conclude(checker, ALL_CLOSED) == failures


@pytest.mark.parametrize(("more", "failures"), [(0, set()), (1, {verdicts.ROUNDS_CLOSE})])
def test_views_are_counted_from_the_end_of_a_disturbance(
    checker: Checker, more: int, failures: set[str]
) -> None:
    for round_, view in ((1, 7), (2, 9999 + views_to_close_max(4) + more)):
        participant = ParticipantStub(NodeId(0), ALL_CLOSED, view=view)
        checker.notice(NodeId(0), RoundClosed(Round(round_), (), ()), 1.0, participant)
        checker.disturbed(0, View(9999))

    assert conclude(checker, ALL_CLOSED) == failures


def test_views_are_not_judged_while_faults_strike(checker: Checker) -> None:
    checker.quiet = False
    for round_, view in ((1, 7), (2, 9999)):
        participant = ParticipantStub(NodeId(0), ALL_CLOSED, view=view)
        checker.notice(NodeId(0), RoundClosed(Round(round_), (), ()), 1.0, participant)

    assert conclude(checker, ALL_CLOSED) == set()


@pytest.mark.parametrize(
    "buffer",
    ["blocks", "transactions", "statements", "blobs", "offers", "acks", "fetches", "evidence"],
)
def test_a_buffer_above_its_bound_is_detected(checker: Checker, buffer: str) -> None:
    assert conclude(checker, ALL_CLOSED, stored={buffer: 2}) == set()
    assert conclude(checker, ALL_CLOSED, stored={buffer: 5000}) == {verdicts.WITHIN_BOUNDS}


def test_more_blocks_than_views_since_the_snapshot_are_detected_before_the_tree_is_full(
    checker: Checker,
) -> None:
    assert conclude(checker, ALL_CLOSED, stored={"blocks": 8}) == set()
    assert conclude(checker, ALL_CLOSED, stored={"blocks": 12}) == {verdicts.WITHIN_BOUNDS}


def test_every_buffer_of_a_participant_has_a_bound() -> None:
    cluster: Cluster = cluster_of(4, rounds=1)
    cluster.run()
    cluster.conclude()

    stored = cluster.nodes[0].behaviour.participant.stored
    assert set(stored) == set(cluster.checker.largest)
    assert cluster.checker.largest["blocks"] > 0


@pytest.mark.parametrize("kind", ["blobs", "blocks"])
def test_a_disk_that_holds_too_much_is_detected(
    checker: Checker, blocks: list[Block], kind: str
) -> None:
    full = disk()
    if kind == "blobs":
        full.blobs.update({digest(f"{i}"): full.blobs[MODEL.digest] for i in range(100)})
    else:
        full.blocks.update({digest(f"{i}"): blocks[0] for i in range(5000)})

    assert conclude(checker, ALL_CLOSED, disks=(full,)) == {verdicts.WITHIN_BOUNDS}


def test_the_list_of_violations_is_bounded_and_the_verdicts_are_not(checker: Checker) -> None:
    for _ in range(500):
        checker.violate(verdicts.SAME_LOG, "again")
    checker.violate(verdicts.SAME_MODEL, "once")

    assert len(checker.violations) == 100
    assert checker.verdicts[verdicts.SAME_MODEL] is False


# A new check needs a test here too.
def test_an_honest_member_excluded_round_after_round_is_detected(
    checker: Checker,
) -> None:
    participant = ParticipantStub(NodeId(0), ALL_CLOSED)
    honest = tuple(NodeId(member) for member in range(4) if member != LIAR)
    for round_ in range(1, ROUNDS_TO_LEARN + LEFT_OUT_IN_A_ROW_MAX + 1):
        checker.notice(NodeId(0), RoundClosed(Round(round_), honest[1:], ()), 1.0, participant)
    assert failed(checker) == set()
    checker.notice(NodeId(0), RoundClosed(Round(round_ + 1), honest[1:], ()), 1.0, participant)

    assert failed(checker) == {verdicts.NO_MEMBER_LEFT_BEHIND}


def test_an_honest_node_that_becomes_an_observer_is_detected(checker: Checker) -> None:
    participant = ParticipantStub(NodeId(0), ALL_CLOSED)
    checker.rolled_back.add(NodeId(2))
    checker.notice(NodeId(2), Observing("its disk is an old copy"), 1.0, participant)
    assert failed(checker) == set()
    checker.notice(NodeId(0), Observing("another node reports it"), 1.0, participant)

    assert failed(checker) == {verdicts.NO_MEMBER_LEFT_BEHIND}


def test_an_honest_member_that_ends_without_proof_of_the_last_model_is_detected(
    checker: Checker,
) -> None:
    ended = [ParticipantStub(NodeId(i), ALL_CLOSED, finished=True) for i in range(3)]
    for member in (0, 1, 2):
        attested = Attested(Round(3 if member else 2), digest("model"), ())
        checker.notice(NodeId(member), attested, 1.0, ended[member])
    checker.conclude(honest_nodes(ended), rounds_due=True)

    assert failed(checker) == {verdicts.NO_MEMBER_LEFT_BEHIND}
    assert len(checker.violations) == 1


SEEN_BY_A_TEST = (
    verdicts.NO_CONFLICTING_COMMITS,
    verdicts.SAME_LOG,
    verdicts.SAME_LEDGER,
    verdicts.NOTHING_SIGNED_TWICE,
    verdicts.CERTIFICATES,
    verdicts.ACKS_OBEY,  # in test_durability.py
    verdicts.RETRIEVABLE,
    verdicts.ONE_UPDATE,
    verdicts.TRANSACTIONS,
    verdicts.ROUNDS_CLOSE,
    verdicts.WITHIN_BOUNDS,
    verdicts.SAME_MODEL,
    verdicts.NO_MEMBER_LEFT_BEHIND,
    verdicts.NOTHING_BEFORE_ITS_RECORD,  # this one and the next in test_durability.py
    verdicts.INPUTS_IN_PLACE,
    verdicts.ONE_HANDOVER,  # these in test_epoch_checks.py
    verdicts.ONE_EPOCH_PER_ROUND,
    verdicts.MODEL_GOES_ON,
    verdicts.SURVIVES_BOUNDARY,
    verdicts.MEMBERS_ONLY,
    verdicts.NEWEST_EPOCH,
)
