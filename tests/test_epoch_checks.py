"""Every check about members that come and go detects its violation."""

from typing import cast

import pytest
from msgspec.structs import replace

from defl.committee import Federation, Member
from defl.ids import NO_DIGEST, OUTSIDER, NodeId, Round
from defl.ledger import LedgerState
from defl.messages import Agg, Attestation, Block, Certificates, Gossip, Message, Offer, StoreAck
from defl.output import Committed, ModelReady
from defl.participant import Participant
from defl.sim import verdicts
from defl.sim.checks import Checker
from defl.sim.disk import Disk
from defl.sim.epoch_facts import Boundary, EpochFacts
from defl.sim.scenario import signer_of
from defl.succession import PendingChange
from support.checker_inputs import (
    ALL_CLOSED,
    FEDERATION,
    LIAR,
    MODEL,
    NOISE,
    SIGNERS,
    UPDATES,
    ParticipantStub,
    checker_of_four,
    closed,
    digest,
    disk,
    failed,
    honest_blocks,
    honest_nodes,
    qc,
    reference,
    vote,
)

JOINER = NodeId(4)
NEW_KEY = signer_of(JOINER, seed=1, real=False).public_key


def following(*members: Member, rounds: int = 3) -> Federation:
    membership = replace(
        FEDERATION.membership,
        epoch=1,
        origin=FEDERATION.chain,
        parent=FEDERATION.chain,
        first_round=4,
        rounds=rounds,
        members=members,
    )
    return Federation(FEDERATION.charter, membership)


# Member 0 has left, a fifth one has joined.
NEXT = following(
    replace(FEDERATION.members[0], active=False),
    *FEDERATION.members[1:],
    Member("joiner", NEW_KEY),
)
# Member 0 has another machine.
REPLACED = following(Member("node-0", NEW_KEY), *FEDERATION.members[1:])


@pytest.fixture
def checker() -> Checker:
    new = checker_of_four()
    new.facts.add_machine(JOINER, NEW_KEY)
    return new


def enter(
    checker: Checker,
    machine: int,
    federation: Federation,
    state: LedgerState = ALL_CLOSED,
    *disks: Disk,
) -> None:
    """This machine, one of those with these disks, begins the epoch."""
    member = checker.facts.member_of(NodeId(machine), 0)
    stub = ParticipantStub(member, state, federation=federation)
    given = disks or tuple(disk_with_base() for _ in range(5))
    checker.entered(
        NodeId(machine), cast("Participant", stub), lambda: dict(zip(range(5), given, strict=False))
    )


def disk_with_base() -> Disk:
    """It holds everything that `ALL_CLOSED` names."""
    new = disk()
    new.blobs[NO_DIGEST] = new.blobs[MODEL.digest]
    new.holds = lambda name: name == NO_DIGEST or Disk.holds(new, name)  # type: ignore[method-assign]
    return new


def test_a_boundary_that_everybody_crosses_alike_passes(checker: Checker) -> None:
    for machine in (1, 2, 4):
        enter(checker, machine, NEXT)

    assert failed(checker) == set()
    assert checker.facts.newest == NEXT


def test_two_memberships_after_one_epoch_are_detected(checker: Checker) -> None:
    enter(checker, 1, NEXT)
    enter(checker, LIAR, REPLACED)
    assert failed(checker) == set(), "a liar may believe what it likes"
    enter(checker, 2, REPLACED)

    assert failed(checker) == {verdicts.ONE_HANDOVER}


# --- Rounds and models ---------------------------------------------------------------------

OFFER = Offer(Round(4), NodeId(1), MODEL, NOISE)
ACK = StoreAck(Round(4), NodeId(2), digest("a"), NO_DIGEST, 256, NodeId(1), NOISE)
STATEMENTS: dict[str, Message] = {
    "offer": OFFER,
    "ack": ACK,
    "attestation": Attestation(Round(4), digest("a"), NodeId(1), NOISE),
    "AGG": Gossip((Agg(Round(4), NodeId(1), NOISE),)),
}


@pytest.mark.parametrize("kind", list(STATEMENTS))
def test_a_round_signed_in_two_epochs_is_detected(checker: Checker, kind: str) -> None:
    enter(checker, 1, NEXT)
    checker.sent(NodeId(1), STATEMENTS[kind], 0)
    checker.sent(NodeId(1), STATEMENTS[kind], 0)
    assert failed(checker) == set()
    checker.sent(NodeId(1), STATEMENTS[kind], 1)

    assert failed(checker) == {verdicts.ONE_EPOCH_PER_ROUND}


def test_a_liars_early_offer_may_be_acknowledged_and_again_in_the_next_epoch(
    checker: Checker,
) -> None:
    enter(checker, 1, NEXT)
    early = replace(ACK, author=LIAR)
    checker.sent(NodeId(1), early, 0)
    checker.sent(NodeId(1), replace(early, digest=digest("b")), 1)

    assert failed(checker) == set()


def test_a_certificate_of_the_epoch_before_does_not_count(checker: Checker) -> None:
    """It also names a member that has left."""
    enter(checker, 1, NEXT)
    certificates = Certificates(qc(3, digest("a"), (0, 1, 2)), None)
    checker.sent(NodeId(1), certificates, 0)
    assert failed(checker) == set()
    checker.sent(NodeId(1), certificates, 1)

    assert failed(checker) == {verdicts.CERTIFICATES, verdicts.MEMBERS_ONLY}


def test_views_begin_again_in_each_epoch(checker: Checker) -> None:
    enter(checker, 1, NEXT)
    checker.sent(NodeId(1), vote(3, digest("a"), 1), 0)
    checker.sent(NodeId(1), replace(vote(3, digest("b"), 1), epoch=1), 1)

    assert failed(checker) == set()


def test_a_round_trained_from_another_model_than_the_last_ones_is_detected(
    checker: Checker,
) -> None:
    participant = cast("Participant", ParticipantStub(NodeId(0), ALL_CLOSED))
    checker.notice(NodeId(0), ModelReady(Round(1), NO_DIGEST), 1.0, participant)
    checker.conclude(honest_nodes([ParticipantStub(NodeId(0), ALL_CLOSED)]), rounds_due=True)
    assert failed(checker) == set()
    checker.notice(NodeId(0), ModelReady(Round(2), digest("another")), 1.0, participant)
    checker.conclude(honest_nodes([ParticipantStub(NodeId(0), ALL_CLOSED)]), rounds_due=True)

    assert failed(checker) == {verdicts.MODEL_GOES_ON}


OPEN = replace(ALL_CLOSED, current=(reference(1, digest("open")),))


@pytest.mark.parametrize(
    ("state", "held"),
    [
        (ALL_CLOSED, "the base alone"),
        (ALL_CLOSED, "the updates alone"),
        (OPEN, "all but the open round"),
        (ALL_CLOSED, "all, at the leaver alone"),
    ],
)
def test_a_last_round_that_the_new_members_cannot_retrieve_is_detected(
    checker: Checker, state: LedgerState, held: str
) -> None:
    full, base_alone, none = disk_with_base(), disk_with_base(), disk(whole=False)
    del base_alone.blobs[MODEL.digest]
    disks = {
        "the base alone": (none, base_alone),
        "the updates alone": (none, disk()),
        "all but the open round": (none, full),
        "all, at the leaver alone": (full, none),
    }[held]
    enter(checker, 1, NEXT, state, *disks)

    assert failed(checker) == {verdicts.SURVIVES_BOUNDARY}


# --- Who has a say -------------------------------------------------------------------------


def state_of(**fields: object) -> LedgerState:
    return replace(LedgerState(Round(3), (), (), ()), **fields)


CHANGE = PendingChange(Round(4), NodeId(1), digest("change"), (), (NodeId(1),))
OF_THE_LEAVER = {
    "an update": state_of(current=(reference(0, digest("a")),)),
    "an AGG": state_of(voters=(NodeId(0),)),
    "a change": state_of(changes=(replace(CHANGE, author=NodeId(0)),)),
    "an approval": state_of(changes=(replace(CHANGE, approvals=(NodeId(0), NodeId(1))),)),
    "a part in a closed round": state_of(closed=(replace(closed(4, *UPDATES), epoch=1),)),
}


@pytest.mark.parametrize("what", list(OF_THE_LEAVER))
def test_a_ledger_that_heeds_somebody_who_has_left_is_detected(checker: Checker, what: str) -> None:
    enter(checker, 1, NEXT)
    stub = ParticipantStub(NodeId(1), OF_THE_LEAVER[what], federation=NEXT)
    checker.conclude(honest_nodes([stub]), rounds_due=False)

    assert failed(checker) == {verdicts.MEMBERS_ONLY}


@pytest.mark.parametrize("case", ["by a departed leader", "an old AGG", "by a replaced key"])
def test_a_block_with_a_statement_of_somebody_who_has_left_is_detected(
    checker: Checker, case: str
) -> None:
    enter(checker, 1, REPLACED if case == "by a replaced key" else NEXT)
    facts = checker.facts.newest
    author = NodeId(1 if case == "an old AGG" else 2)
    unsigned = Agg(Round(4), NodeId(0), b"")
    if case == "by a departed leader":
        author, unsigned = NodeId(0), Agg(Round(4), NodeId(1), b"")
    statement = unsigned.statement(facts.chain, 1)
    agg = replace(unsigned, signature=SIGNERS[unsigned.author].sign(statement))
    header = replace(honest_blocks()[0].header, epoch=1, author=author)
    checker.committed(NodeId(1), [Committed(Block(header, (agg,)), ())])

    assert failed(checker) == {verdicts.MEMBERS_ONLY}


def test_statements_count_for_the_machine_that_has_the_key(checker: Checker) -> None:
    """The new machine of member 0 signs in its name; the old one's updates are not its own."""
    enter(checker, 1, REPLACED)
    assert checker.facts.member_of(JOINER, 1) == NodeId(0)
    assert checker.facts.member_of(NodeId(0), 1) == OUTSIDER
    assert checker.facts.machine_of(NodeId(0), 0) == NodeId(0)
    checker.sent(NodeId(0), Offer(Round(3), NodeId(0), MODEL, NOISE), 0)
    checker.sent(JOINER, Offer(Round(3), NodeId(0), replace(MODEL, base=digest("b")), NOISE), 1)

    assert failed(checker) == set()


# --- Where everybody is --------------------------------------------------------------------


@pytest.mark.parametrize("who", ["a member", "one that has left"])
def test_a_machine_that_is_left_in_an_old_epoch_is_detected(checker: Checker, who: str) -> None:
    enter(checker, 1, NEXT)
    there = ParticipantStub(NodeId(1), ALL_CLOSED, federation=NEXT)
    left = ParticipantStub(NodeId(0), ALL_CLOSED, federation=NEXT, departed=True)
    checker.conclude(honest_nodes([there, left]), rounds_due=True)
    assert failed(checker) == set()
    forgotten = ParticipantStub(NodeId(0), ALL_CLOSED, federation=NEXT)
    behind = ParticipantStub(NodeId(2), ALL_CLOSED) if who == "a member" else forgotten
    checker.conclude(honest_nodes([there, behind]), rounds_due=True)

    assert failed(checker) == {verdicts.NEWEST_EPOCH}


def test_the_report_counts_what_each_boundary_changed() -> None:
    facts = EpochFacts(FEDERATION)
    facts.add(NEXT)

    assert facts.boundaries == [Boundary(1, 4, 4, joined=1, left=1, replaced=0, rounds=3)]
    facts = EpochFacts(FEDERATION)
    facts.add(REPLACED)
    assert facts.boundaries == [Boundary(1, 4, 4, joined=0, left=0, replaced=1, rounds=3)]
