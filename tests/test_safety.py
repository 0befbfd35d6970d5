"""The safety record: what it forbids and keeps, and that it is persisted before sending."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

import defl
from defl.committee import Rules
from defl.consensus.effects import ConsensusEffects
from defl.consensus.replica import Replica
from defl.consensus.safety import Safety, first_record
from defl.errors import SigningRefused
from defl.fields import bitmap_of
from defl.ids import NodeId, View, digest_of
from defl.messages import (
    QC,
    TC,
    Certificates,
    Message,
    Proposal,
    Timeout,
    Vote,
    genesis_qc,
    timeout_statement,
    vote_statement,
)
from defl.output import Durable, Observing, SafetyRecord
from defl.sim.bare_replicas import LIVE, facts
from defl.sim.script import BlockFacts, Cast, Script, Stage, TcFacts
from defl.sim.signer import NoopSigner

BOTH = pytest.mark.parametrize("rules", list(Rules))
ME, PEER = NodeId(0), NodeId(1)
CHAIN = digest_of(b"chain")
GENESIS_QC = genesis_qc(digest_of(b"genesis"))
DENIED = {"1": "genesis", "2": "genesis", "3": "genesis"}
SCENE = Script(
    title="three blocks in a row, and what follows when view 1, or views 1 and 2, were lost",
    attacks="",
    source="",
    node=ME,
    steps=[],
    blocks={
        "a": BlockFacts(1, "genesis"),
        "b": BlockFacts(2, "a"),
        "c": BlockFacts(3, "b"),
        "late": BlockFacts(2, "genesis", tc="T1"),
    },
    tcs={"T1": TcFacts(1, DENIED), "T3": TcFacts(3, DENIED)},
)


def qc_of(view: int, name: str = "x") -> QC:
    return QC(View(view), digest_of(name.encode()), b"\x0e", ())


def safety(record: SafetyRecord | None = None) -> Safety:
    return Safety(record or first_record(0, GENESIS_QC), CHAIN, ME, NoopSigner(bytes(32)))


def replica_of(cast: Cast, record: SafetyRecord | None, blocks: Iterable[object] = ()) -> Replica:
    replica = cast.replica(Durable(record, None, tuple(blocks)))
    replica.submit(LIVE, 0.0)
    return replica


def signed(effects: ConsensusEffects) -> list[Message]:
    """The statements of this node that these effects send."""
    return [e.message for e in effects.send if isinstance(e.message, Proposal | Vote | Timeout)]


def time_out(replica: Replica) -> ConsensusEffects:
    assert replica.wake_at is not None
    replica.tick(replica.wake_at)
    return replica.take()


# --- The record by itself -----------------------------------------------------------------


def test_a_node_votes_once_per_view_and_never_in_an_earlier_one() -> None:
    cast = Cast(SCENE, Rules.HOTSTUFF)
    signer = safety()
    signer.sign_vote(cast.block("b"), GENESIS_QC)

    assert not signer.may_vote(View(2))
    assert not signer.may_vote(View(1))
    assert signer.may_vote(View(3))
    assert not safety(signer.record).may_vote(View(2))


def test_a_node_does_not_vote_in_a_view_that_it_gave_up() -> None:
    signer = safety()
    signer.sign_timeout(View(4))

    assert not signer.may_vote(View(4))
    assert not signer.may_vote(View(3))
    assert not signer.may_time_out(View(4))
    assert signer.may_vote(View(5))
    assert not safety(signer.record).may_vote(View(4))


def test_the_lock_only_rises() -> None:
    cast = Cast(SCENE, Rules.HOTSTUFF)
    signer = safety()
    signer.sign_vote(cast.block("a"), qc_of(5))
    assert signer.record.lock == qc_of(5)
    signer.sign_vote(cast.block("b"), qc_of(3))
    assert signer.record.lock == qc_of(5)
    signer.sign_vote(cast.block("c"), qc_of(6))
    assert signer.record.lock == qc_of(6)


def test_the_high_certificates_only_rise_and_the_view_follows_the_higher() -> None:
    signer = safety()
    tc = TC(View(6), b"\x0e", (), (), qc_of(2))
    assert signer.learn_qc(qc_of(4))
    assert not signer.learn_qc(qc_of(3))
    assert not signer.learn_qc(qc_of(4, "other"))
    assert signer.next_view == 5
    assert signer.learn_tc(tc)
    assert not signer.learn_tc(replace(tc, view=View(5)))
    assert signer.record.high_qc == qc_of(4)
    assert signer.next_view == 7


def test_a_timeout_reports_the_high_qc_and_the_tc_that_led_into_its_view() -> None:
    signer = safety()
    signer.learn_qc(qc_of(4))
    signer.learn_tc(TC(View(6), b"\x0e", (), (), qc_of(2)))
    timeout = signer.sign_timeout(View(7))

    assert timeout.high_qc == qc_of(4)
    assert timeout.tc == signer.record.high_tc
    assert timeout.signature.startswith(timeout_statement(CHAIN, 0, View(7), View(4)))
    assert signer.sign_timeout(View(8)).tc is None


def test_one_proposal_is_signed_for_a_view() -> None:
    signer = safety()
    signer.sign_proposal(Cast(SCENE, Rules.HOTSTUFF).block("b"))

    assert not signer.may_propose(View(2))
    assert not signer.may_propose(View(1))
    assert signer.may_propose(View(3))


# --- The signer guards itself ----------------------------------------------------------------


@contextmanager
def refused(signer: Safety) -> Iterator[None]:
    """The signer refuses, and its record stays as it was."""
    record, signer.changed = signer.record, False
    with pytest.raises(SigningRefused):
        yield
    assert signer.record is record
    assert not signer.changed


def test_the_signer_never_votes_for_two_blocks_of_one_view() -> None:
    cast = Cast(SCENE, Rules.HOTSTUFF)
    signer = safety()
    signer.sign_vote(cast.block("b"), GENESIS_QC)

    for name in ("late", "b", "a"):  # view 2 again, and an earlier view
        with refused(signer):
            signer.sign_vote(cast.block(name), GENESIS_QC)
    with refused(restarted := safety(signer.record)):
        restarted.sign_vote(cast.block("late"), GENESIS_QC)


def test_the_signer_never_votes_in_a_view_that_it_has_given_up() -> None:
    signer = safety()
    signer.sign_timeout(View(2))

    with refused(signer):
        signer.sign_vote(Cast(SCENE, Rules.HOTSTUFF).block("b"), GENESIS_QC)


def test_the_signer_never_times_out_twice_in_one_view() -> None:
    signer = safety()
    signer.sign_timeout(View(4))
    signer.learn_qc(qc_of(3))  # another timeout for view 4 would report it

    for view in (4, 3):
        with refused(signer):
            signer.sign_timeout(View(view))


def test_the_signer_never_proposes_two_blocks_for_one_view() -> None:
    cast = Cast(SCENE, Rules.HOTSTUFF)
    signer = safety()
    signer.sign_proposal(cast.block("b"))

    for name in ("late", "a"):
        with refused(signer):
            signer.sign_proposal(cast.block(name))


def test_the_signer_of_an_observer_refuses_everything() -> None:
    block = Cast(SCENE, Rules.HOTSTUFF).block("b")
    signer = safety()
    signer.observe("the record is old")

    with refused(signer):
        signer.sign_vote(block, GENESIS_QC)
    with refused(signer):
        signer.sign_timeout(View(2))
    with refused(signer):
        signer.sign_proposal(block)


def test_only_the_replica_asks_the_signer_for_statements() -> None:
    """No other module of the product signs votes."""
    source = Path(defl.__file__).parent
    callers = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r"\.sign_(vote|timeout|proposal)\(", path.read_text(encoding="utf-8"))
    }

    assert callers == {"consensus/replica.py"}


# --- Persist before send ------------------------------------------------------------------


@BOTH
def test_a_vote_leaves_with_its_record_and_its_block(rules: Rules) -> None:
    cast = Cast(SCENE, rules)
    replica = replica_of(cast, cast.record)
    replica.take()
    replica.receive(PEER, cast.proposal("a"), 0.0)
    effects = replica.take()

    (vote,) = signed(effects)
    assert effects.record is not None
    assert effects.record.last_vote == vote
    assert effects.record.last_voted_view == 1
    assert effects.blocks == [cast.block("a")]
    assert replica.take().record is None


def test_a_vote_makes_uncommitted_ancestors_durable_too() -> None:
    """b came by catch-up, without a vote; the vote for c must not leave without it."""
    cast = Cast(SCENE, Rules.HOTSTUFF)
    replica = replica_of(cast, cast.record)
    replica.receive(PEER, Certificates(cast.qc("b"), None), 0.0)
    replica.receive(PEER, cast.proposal("b"), 0.0)
    replica.receive(PEER, cast.proposal("a"), 0.0)
    assert not signed(replica.take())
    replica.receive(PEER, cast.proposal("c"), 0.0)
    effects = replica.take()

    assert len(signed(effects)) == 1
    assert effects.blocks == [cast.block("a"), cast.block("b"), cast.block("c")]


def test_a_timeout_leaves_with_its_record_and_its_certificates() -> None:
    cast = Cast(SCENE, Rules.HOTSTUFF)
    replica = replica_of(cast, cast.record)
    replica.receive(PEER, Certificates(cast.qc("b"), cast.tc("T3")), 0.0)
    replica.receive(PEER, Certificates(cast.qc("a"), None), 0.0)
    replica.take()
    effects = time_out(replica)

    (timeout,) = signed(effects)
    assert effects.record is not None
    assert effects.record.last_timeout == timeout
    assert effects.record.last_timeout_view == 4
    assert effects.record.high_qc == cast.qc("b")
    assert effects.record.high_tc == cast.tc("T3")
    assert replica_of(cast, effects.record).view == 4


def test_a_proposal_leaves_with_its_record_and_the_vote_for_it() -> None:
    cast = Cast(SCENE, Rules.HOTSTUFF)
    replica = replica_of(cast, cast.record)
    for name in "abc":
        replica.receive(PEER, cast.proposal(name), 0.0)
    replica.take()
    replica.receive(PEER, Certificates(cast.qc("c"), None), 0.0)
    effects = replica.take()

    proposal, vote = signed(effects)
    assert effects.record is not None
    assert (effects.record.last_proposal, effects.record.last_vote) == (proposal, vote)
    assert isinstance(proposal, Proposal)
    assert effects.blocks[-1] == proposal.block


# --- Across a restart ---------------------------------------------------------------------


@BOTH
def test_a_restarted_node_repeats_exactly_its_last_statements(
    rules: Rules,
) -> None:
    cast = Cast(SCENE, rules)
    replica = replica_of(cast, cast.record)
    replica.receive(PEER, cast.proposal("a"), 0.0)
    voted = replica.take()
    timed_out = time_out(replica)
    restarted = replica_of(cast, timed_out.record, voted.blocks)
    restarted.take()
    restarted.resume(5.0)

    assert signed(restarted.take()) == [*signed(voted), *signed(timed_out)]
    restarted.receive(PEER, cast.proposal("a"), 5.0)
    assert signed(restarted.take()) == []
    assert signed(time_out(restarted)) == signed(timed_out)


@BOTH
def test_a_restarted_node_keeps_its_votes_lock_and_high_qc(rules: Rules) -> None:
    cast = Cast(SCENE, rules)
    replica = replica_of(cast, cast.record)
    blocks = []
    for name in "abc":
        replica.receive(PEER, cast.proposal(name), 0.0)
        effects = replica.take()
        blocks += effects.blocks
    restarted = replica_of(cast, effects.record, blocks)

    assert restarted.view == 3
    assert restarted.record.high_qc == cast.qc("b")
    assert restarted.record.lock == cast.qc("a" if rules is Rules.HOTSTUFF else "b")
    assert restarted.record.last_voted_view == 3
    assert restarted.head == replica.head


# --- Observers ----------------------------------------------------------------------------


def tempted(cast: Cast, replica: Replica) -> list[Message]:
    """Events that make an honest node vote, propose, time out or repeat a statement."""
    replica.resume(0.0)
    for name in "abc":
        replica.receive(PEER, cast.proposal(name), 0.0)
    replica.receive(PEER, Certificates(cast.qc("c"), None), 0.0)
    for author in (1, 2):
        replica.receive(NodeId(author), cast.timeout(View(4), NodeId(author), "c"), 0.0)
    effects = replica.take()
    return [*signed(effects), *signed(time_out(replica))]


def test_without_a_record_nothing_is_signed_but_the_log_is_followed() -> None:
    cast = Cast(SCENE, Rules.HOTSTUFF)
    replica = replica_of(cast, None)

    assert any(isinstance(notice, Observing) for notice in replica.take().notices)
    assert tempted(cast, replica) == []
    assert replica.observing is not None
    assert replica.head == cast.block("a")
    assert len(tempted(cast, replica_of(cast, cast.record))) > 3


def test_a_record_of_another_epoch_counts_as_missing() -> None:
    cast = Cast(SCENE, Rules.HOTSTUFF)
    replica = replica_of(cast, replace(cast.record, epoch=7))

    assert replica.observing is not None
    assert tempted(cast, replica) == []


def test_a_vote_beyond_the_record_makes_the_node_an_observer() -> None:
    """The disk was rolled back: a QC contains a vote that is missing from the record."""
    cast = Cast(SCENE, Rules.HOTSTUFF)
    _, signers, _ = facts(4, Rules.HOTSTUFF)
    block = cast.block("a")
    message = vote_statement(cast.federation.chain, 0, block.view, block.id)
    authors = [NodeId(0), NodeId(1), NodeId(2)]
    signatures = tuple(signers[author].sign(message) for author in authors)
    shown = QC(block.view, block.id, bitmap_of(authors, 4), signatures)
    replica = replica_of(cast, cast.record)
    replica.receive(PEER, Certificates(shown, None), 0.0)

    assert any(isinstance(notice, Observing) for notice in replica.take().notices)
    assert tempted(cast, replica) == []

    honest = replica_of(cast, cast.record)
    honest.receive(PEER, cast.proposal("a"), 0.0)
    honest.receive(PEER, Certificates(shown, None), 0.0)
    assert honest.observing is None


def test_a_timeout_beyond_the_record_makes_the_node_an_observer() -> None:
    cast = Cast(replace(SCENE, tcs={"mine": TcFacts(1, {"0": "genesis", **DENIED})}), Rules.JOLTEON)
    tc = cast.tc("mine")
    replica = replica_of(cast, cast.record)
    replica.receive(PEER, Certificates(tc.qc, tc), 0.0)

    assert replica.observing is not None
    assert tempted(cast, replica) == []

    honest = replica_of(cast, cast.record)
    time_out(honest)
    honest.receive(PEER, Certificates(tc.qc, tc), 1.0)
    assert honest.observing is None


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(("qc b",), id="by the highest QC"),
        pytest.param(("qc b", "qc c", "time passes"), id="by one below a QC on a missing block"),
    ],
)
def test_a_restart_undoes_no_commit(after: tuple[str, ...]) -> None:
    """The QC that committed is in the record, so the node still refuses every fork below it."""
    stage = Stage(SCENE, Rules.JOLTEON)
    for step in ("proposal a", "proposal b", *after):
        stage.do(step)
    head = stage.replica.head
    assert head.height > 0
    stage.do("restart")

    assert stage.replica.head == head
