"""The boundary between two epochs: nobody is left behind, whoever dies or goes too early."""

import pytest

from defl.changes import Remove
from defl.contacts import PeerRole
from defl.finish import ALONE_S
from defl.ids import NodeId, Round
from defl.messages import (
    Blocks,
    Certificates,
    Chunk,
    ManifestAnswer,
    Message,
    NotHeld,
    Proposal,
    Status,
    Timeout,
    Vote,
)
from defl.output import Departed, Envelope, EpochBegan, Isolated, Received
from defl.wire import EPOCHLESS, encode
from support.epochs import Churn

DEAD = 4


def test_a_member_joins_and_another_leaves_while_training_goes_on() -> None:
    churn = Churn(4)
    joiner = churn.add_machine("joiner")
    churn.run_until_round(2)
    churn.change(churn.add(joiner, "eve"))
    churn.run_until_epoch(1)
    churn.run_until_round(6)

    churn.propose(joiner, Remove(NodeId(4)))
    churn.finish()

    assert churn.newest.epoch == 2
    assert churn.newest.state.round == 12
    assert churn.participant(joiner).departed
    assert churn.one_history()
    assert not churn.accusations


def test_a_leaver_with_the_only_proof_stays_until_a_quorum_has_it() -> None:
    """From the last commit on, votes reach only the leaver. If it went at once, the others could
    never prove the end of their epoch: with one member dead, they are one vote short."""
    leaver = 3
    churn = Churn(5)
    churn.switch_off(DEAD)
    churn.run_until_round(1, leaver)

    def votes_reach_only_the_leaver(source: NodeId, target: NodeId, message: Message) -> bool:
        sender = churn.participant(source)
        return isinstance(message, Vote) and target != leaver and sender.state.ended

    churn.cluster.traffic.censor = votes_reach_only_the_leaver
    churn.propose(leaver, Remove(NodeId(leaver)))
    churn.run_until_epoch(1, leaver)
    assert [churn.participant(m).epoch for m in (0, 1, 2)] == [0, 0, 0]
    churn.cluster.traffic.censor = None
    churn.run_until(lambda: bool(churn.notices_of(Departed)))

    arrived = [m for m in (0, 1, 2) if churn.participant(m).epoch == 1]
    assert len(arrived) == 3  # q of the four that stay
    churn.run_until_round(12, 0, 1, 2)
    assert churn.one_history()


def test_a_leaver_that_hears_from_nobody_for_long_is_accused_of_nothing() -> None:
    """It keeps showing its Status, and follows nothing of the epoch that it is no member of."""
    leaver = 4
    churn = Churn(5)
    churn.run_until_round(1)
    heard: set[str] = set()

    def no_status(source: NodeId, target: NodeId, message: Message) -> bool:
        if target != leaver or churn.participant(source).epoch == 0:
            return False
        heard.add(type(message).__name__)
        return isinstance(message, Status)

    churn.cluster.traffic.censor = no_status
    churn.propose(leaver, Remove(NodeId(leaver)))
    churn.run_until_epoch(1)
    last = churn.newest.federation.first_round - 1
    churn.run_until_round(8, 0, 1, 2, 3)
    assert churn.node(leaver).alive
    churn.cluster.traffic.censor = None
    churn.run_until(lambda: bool(churn.notices_of(Departed)))

    assert churn.participant(leaver).state.round == last
    assert "Certificates" not in heard
    assert not churn.accusations


@pytest.mark.parametrize("knows", [True, False])
def test_a_leaver_that_comes_back_after_the_end_stops_by_itself(knows: bool) -> None:
    """It was down when the others would have told it that it may go, or even before the boundary.
    Regression: it ran for ever. It does not claim that it has left or finished."""
    leaver = 4
    churn = Churn(5, rounds=4)
    churn.run_until_round(1)
    if not knows:
        digest = churn.propose(0, Remove(NodeId(leaver)))
        churn.switch_off(leaver)
        churn.approve(digest, 1, 2, 3)
    else:
        churn.cluster.traffic.censor = lambda _source, target, _message: (
            target == leaver and churn.participant(leaver).epoch == 1
        )
        churn.propose(leaver, Remove(NodeId(leaver)))
        churn.run_until(lambda: bool(churn.notices_of(EpochBegan, leaver)))
        churn.switch_off(leaver)
        churn.cluster.traffic.censor = None
    churn.run_until(lambda: all(churn.node(machine).ended for machine in range(4)))
    churn.switch_on(leaver)
    back_at = churn.cluster.now
    assert churn.participant(leaver).role is (PeerRole.FORMER if knows else PeerRole.MEMBER)
    while churn.node(leaver).alive and churn.cluster.now < back_at + 2 * ALONE_S:
        churn.cluster.step()

    assert churn.node(leaver).ended
    assert churn.cluster.now <= back_at + ALONE_S + 1.0
    assert churn.notices_of(Isolated, leaver)
    assert not churn.participant(leaver).finished
    assert not churn.participant(leaver).departed


def test_a_former_member_does_not_ask_for_blocks() -> None:
    """A liar shows it certificates of the epoch that it is no member of."""
    leaver = 4
    churn = Churn(5)
    churn.run_until_round(1)
    churn.propose(leaver, Remove(NodeId(leaver)))
    churn.run_until_epoch(1)
    churn.run_until(lambda: churn.participant(0).replica.record.high_qc.view > 0)
    certificates = Certificates(churn.participant(0).replica.record.high_qc, None)

    former = churn.participant(leaver)
    output = former.handle(Received(NodeId(0), certificates, epoch=1), churn.cluster.now)

    assert former.epoch == 1
    assert [item for item in output.send if isinstance(item, Envelope)] == []


def test_an_answer_that_is_on_its_way_when_its_sender_leaves_is_no_fault() -> None:
    leaver = 4
    churn = Churn(5)
    churn.run_until_round(1)
    manifest = churn.node(0).disk.models[Round(0)]
    churn.propose(leaver, Remove(NodeId(leaver)))
    churn.run_until_epoch(1)
    peer = churn.participant(0).contacts.peer_of(churn.node(leaver).key)
    assert peer is not None

    for answer in (
        ManifestAnswer(manifest),
        Chunk(manifest.digest, 0, memoryview(b"data")),
        NotHeld(manifest.digest),
    ):
        churn.node(0).ingress.admit(peer, encode(answer))


def test_what_was_checked_in_the_last_epoch_is_not_heard_in_the_next() -> None:
    """Messages wait in queues while their node switches. A certificate of the last epoch, heard
    in the next, would be in its record for ever: its views are higher."""
    churn = Churn(4)
    waiting: list[tuple[NodeId, Message]] = []

    def spy(source: NodeId, target: NodeId, message: Message) -> bool:
        if target == 0 and source < 4 and churn.participant(source).epoch == 0:
            waiting.append((source, message))
        return False

    churn.cluster.traffic.censor = spy
    churn.run_until_round(1)
    joiner = churn.add_machine("joiner")
    churn.change(churn.add(joiner, "eve"))
    churn.run_until_epoch(1)
    proposals = [message for _, message in waiting if isinstance(message, Proposal)]
    for proposal in proposals:
        author, qc = proposal.block.header.author, proposal.block.qc
        waiting.append((author, Certificates(qc, None)))
        waiting.append((author, Timeout(0, qc.view, qc, None, author, b"")))
        waiting.append((author, Blocks((proposal.block,))))
    participant = churn.participant(0)
    record, state = participant.replica.record, participant.state

    for peer, message in waiting:
        if not isinstance(message, EPOCHLESS):
            participant.handle(Received(peer, message, epoch=0), churn.cluster.now)

    assert participant.replica.record == record
    assert participant.state == state
    churn.finish()
    assert not churn.observers


def test_a_member_that_restarts_after_the_boundary_still_has_the_updates_before_it() -> None:
    """No ack of the new epoch names them. A member that is behind aggregates the closing round from
    them, and a leaver among their holders may be gone."""
    churn = Churn(5)
    churn.run_until_round(1)
    churn.propose(4, Remove(NodeId(4)))
    churn.run_until_epoch(1, 0, 1, 2, 3)
    closing = churn.participant(0).state.last
    assert closing is not None
    held = {ref.digest for ref in closing.updates if churn.participant(0).pool.has(ref.digest)}
    assert held
    churn.switch_off(0)
    churn.switch_on(0)

    assert all(churn.participant(0).pool.has(digest) for digest in held)
    assert held <= churn.node(0).disk.blobs.keys()


@pytest.mark.parametrize("seed", range(3))
def test_a_bare_quorum_that_restarts_between_the_last_block_and_its_proof_goes_on(
    seed: int,
) -> None:
    """All three that are left have executed the end of the epoch and given up one view; then all
    restart. Their own timeouts must count again."""
    churn = Churn(4, seed=seed)
    joiner = churn.add_machine("joiner")
    churn.run_until_round(1)

    def no_proof(_source: NodeId, _target: NodeId, message: Message) -> bool:
        return isinstance(message, Proposal | Vote) and _ended(churn)

    def no_certificate(source: NodeId, target: NodeId, message: Message) -> bool:
        return isinstance(message, Timeout) or no_proof(source, target, message)

    churn.cluster.traffic.censor = no_proof
    churn.change(churn.add(joiner, "eve"))
    churn.run_until(lambda: _ended(churn))
    churn.switch_off(3)
    live = (0, 1, 2)
    assert all(churn.participant(machine).epoch == 0 for machine in live)
    views = _views(churn, *live)
    churn.run_until(lambda: len(_views(churn, *live)) == 1 and _views(churn, *live) != views)
    churn.cluster.traffic.censor = no_certificate
    churn.run_until(lambda: all(_has_given_up(churn, machine) for machine in live))
    assert len(_views(churn, *live)) == 1
    churn.switch_off(*live)
    churn.cluster.traffic.censor = None
    churn.switch_on(*live)

    churn.run_until_epoch(1, *live)
    churn.run_until_round(12, *live)
    assert churn.one_history()


def _ended(churn: Churn) -> bool:
    return all(churn.participant(machine).state.ended for machine in range(3))


def _views(churn: Churn, *machines: int) -> set[int]:
    return {churn.participant(machine).replica.view for machine in machines}


def _has_given_up(churn: Churn, machine: int) -> bool:
    """Its timeout of the present view is on its disk."""
    record = churn.node(machine).disk.record
    return record is not None and {record.last_timeout_view} == _views(churn, machine)
