"""Members that were away while epochs passed, and members whose disk is gone."""

import pytest

from defl.changes import Remove, Rounds
from defl.ids import OUTSIDER, NodeId, Round
from defl.messages import Handover, Message, Proposal, StoreAck, Timeout, Vote
from defl.output import Observing
from defl.sim.conditions import Conditions
from support.epochs import Churn

SIGNED = (Proposal, Vote, Timeout, StoreAck)


def test_a_member_that_slept_while_all_others_were_replaced_finds_the_newest_epoch() -> None:
    """It knows none of those that are members now: they are strangers who hand it the proofs."""
    sleeper = 3
    churn = Churn(4, rounds=16)
    churn.run_until_round(1)
    churn.switch_off(sleeper)
    for epoch, member in enumerate((0, 1, 2), start=1):
        machine = churn.add_machine(f"new {member}")
        proposer = next(m for m in churn.members if m != member)
        others = tuple(m for m in churn.members if m != proposer)
        churn.change(churn.replace_key(member, machine), by=proposer, approvers=others)
        churn.run_until_epoch(epoch)
        churn.run_until(lambda m=member: not churn.node(m).alive)

    churn.run_for(1.0)  # nothing that the departed sent is still on its way
    churn.switch_on(sleeper)
    churn.finish()

    assert churn.participant(sleeper).epoch == 3
    assert churn.epochs_begun(sleeper) == [1, 2, 3]
    assert churn.participant(sleeper).state.round == 16
    assert churn.one_history()
    assert not churn.accusations


def test_a_member_that_returns_after_five_epochs_takes_part_again() -> None:
    away = 3
    churn = Churn(4, rounds=24)
    churn.run_until_round(1)
    churn.switch_off(away)
    for epoch in range(1, 6):
        if epoch % 2 == 1:
            machine = churn.add_machine(f"guest of {epoch}")
            churn.change(churn.add(machine, f"guest-{epoch}"))
        else:
            churn.propose(machine, Remove(churn.participant(machine).me))
        churn.run_until_epoch(epoch)

    churn.switch_on(away)
    churn.run_until_epoch(5, away)
    returned_in = churn.newest.state.round
    churn.finish()

    assert churn.epochs_begun(away) == [1, 2, 3, 4, 5]
    last = churn.newest.state.last
    assert last is not None
    assert last.round > returned_in
    assert NodeId(away) in [ref.author for ref in last.updates]
    assert churn.one_history()
    assert not churn.accusations


def test_a_handover_withheld_from_f_members_reaches_them_from_others() -> None:
    """Neither the votes that prove the end nor the joiner's handovers reach member 3; the others
    hand it the proof as soon as it speaks in its old epoch."""
    kept_out = 3
    churn = Churn(4)
    joiner = churn.add_machine("joiner")
    churn.run_until_round(1)

    def withhold(source: NodeId, target: NodeId, message: Message) -> bool:
        if target != kept_out:
            return False
        if isinstance(message, Handover):
            return source in (1, joiner)
        return churn.participant(source).state.ended or churn.participant(source).epoch > 0

    churn.cluster.traffic.censor = withhold
    churn.change(churn.add(joiner, "eve"))
    churn.run_until_epoch(1, 0)
    assert churn.participant(kept_out).epoch == 0
    churn.run_until_epoch(1, 0, 1, 2, kept_out, joiner)
    churn.cluster.traffic.censor = None
    churn.finish()

    assert churn.one_history()
    assert not churn.accusations


def test_a_wiped_joiner_with_its_key_from_a_backup_never_signs_again() -> None:
    """It signed in its first epoch. All others have restarted, so nobody remembers what; a lying
    leader could show it another block of a view that it has voted in."""
    churn = Churn(4)
    joiner = churn.add_machine("joiner")
    wiped = churn.node(joiner).disk.copy()
    churn.run_until_round(1)
    churn.change(churn.add(joiner, "eve"))
    churn.run_until_epoch(1)
    churn.run_until(lambda: churn.participant(joiner).replica.record.last_vote is not None)
    churn.switch_off(joiner)
    wiped.record = None  # the key alone comes from the backup, without its birth record
    churn.node(joiner).disk = wiped
    churn.switch_off(0, 1, 2, 3)
    churn.switch_on(0, 1, 2, 3)
    signed: list[Message] = []

    def spy(source: NodeId, _target: NodeId, message: Message) -> bool:
        if source == joiner and isinstance(message, SIGNED):
            signed.append(message)
        return False

    churn.cluster.traffic.censor = spy
    churn.switch_on(joiner)
    churn.run_until_epoch(1, joiner)
    churn.run_until_round(12, 0, 1, 2, 3)
    churn.run_until_round(12, joiner)

    assert signed == []
    assert churn.notices_of(Observing, joiner)
    assert churn.participant(joiner).replica.observing is not None


def test_a_member_restored_from_a_copy_of_the_last_epoch_does_not_sign_again() -> None:
    """It has voted in the present epoch, which its disk does not know any more. No certificate
    shows its vote, but the others have seen it."""
    restored = 3
    churn = Churn(4)
    joiner = churn.add_machine("joiner")
    churn.run_until_round(1)
    copy = churn.node(restored).disk.copy()

    def no_certificates(source: NodeId, _target: NodeId, message: Message) -> bool:
        statement = isinstance(message, Vote | Timeout)
        return statement and source != restored and churn.participant(source).epoch == 1

    churn.cluster.traffic.censor = no_certificates
    churn.change(churn.add(joiner, "eve"))
    churn.run_until_epoch(1)
    churn.run_until(lambda: churn.participant(restored).replica.record.last_vote is not None)
    churn.run_for(0.5)
    churn.switch_off(restored)
    churn.node(restored).disk = copy
    signed: list[Message] = []

    def spy(source: NodeId, _target: NodeId, message: Message) -> bool:
        is_present = churn.participant(source).epoch == 1
        if source == restored and is_present and isinstance(message, SIGNED):
            signed.append(message)
        return False

    churn.cluster.traffic.censor = spy
    churn.switch_on(restored)
    churn.run_until_round(12)

    assert churn.participant(restored).epoch == 1
    assert churn.participant(restored).replica.observing is not None
    assert signed == []


@pytest.mark.parametrize("apart", [{3}, {0, 4}, {1, 2}, {0, 1, 2}, {4}], ids=str)
@pytest.mark.parametrize("known_to", [1, 3])
def test_a_partition_across_the_boundary_heals_into_the_next_epoch(
    apart: set[int], known_to: int
) -> None:
    """The network parts when so many members know the end of their epoch."""
    churn = Churn(4)
    joiner = churn.add_machine("joiner")
    churn.run_until_round(1)
    churn.change(churn.add(joiner, "eve"))
    churn.run_until(lambda: sum(_knows_the_end(churn, m) for m in range(4)) >= known_to)

    def cut(source: NodeId, target: NodeId, _message: Message) -> bool:
        return (source in apart) != (target in apart)

    churn.cluster.traffic.censor = cut
    churn.run_for(40.0)
    churn.cluster.traffic.censor = None
    churn.cluster.traffic.reconnect_all()
    churn.finish()

    assert {churn.participant(m).epoch for m in churn.machines} == {1}
    assert churn.newest.state.round == 12
    assert churn.one_history()
    assert not churn.accusations


@pytest.mark.parametrize("apart", [{0}, {1, 4}, {4}], ids=str)
@pytest.mark.parametrize("known_to", [1, 3])
def test_a_bare_quorum_that_is_parted_across_the_boundary_goes_on_when_it_meets(
    apart: set[int], known_to: int
) -> None:
    """Member 3 is off: the epoch's end needs the other three, the next epoch the joiner too."""
    live = (0, 1, 2, 4)
    churn = Churn(4)
    joiner = churn.add_machine("joiner")
    churn.switch_off(3)
    churn.run_until_round(1)
    churn.change(churn.add(joiner, "eve"))
    churn.run_until(lambda: sum(_knows_the_end(churn, m) for m in range(3)) >= known_to)
    churn.cluster.traffic.censor = lambda s, t, _: (s in apart) != (t in apart)
    churn.run_for(40.0)
    churn.cluster.traffic.censor = None
    churn.cluster.traffic.reconnect_all()
    churn.run_until_epoch(1, *live)
    churn.run_until_round(churn.newest.federation.first_round + 2, *live)

    assert churn.one_history()
    assert not churn.accusations


def _knows_the_end(churn: Churn, machine: int) -> bool:
    return churn.participant(machine).state.ended or churn.participant(machine).epoch > 0


def _weights_fetched_by_a_joiner(epochs_before: int) -> int:
    """Bytes of blobs that a new machine receives until it is a member."""
    churn = Churn(4, rounds=30, conditions=Conditions(work_sigma=0.05))
    for epoch in range(1, epochs_before + 1):
        churn.change(Rounds(Round(30 + epoch)))
        churn.run_until_epoch(epoch)
    churn.run_until_round(churn.newest.state.round + 1)
    joiner = churn.add_machine("joiner")
    churn.change(churn.add(joiner, "eve"))
    churn.run_until(lambda: churn.participant(joiner).me != OUTSIDER)
    received = churn.cluster.traffic.weights_bytes
    return sum(count for (_, target), count in received.items() if target == joiner)


def test_a_joiner_does_not_fetch_the_blobs_of_the_epochs_that_it_passes_through() -> None:
    """How many it fetches in its own epoch depends on how far the open round is."""
    few = max(map(_weights_fetched_by_a_joiner, (0, 1)))
    assert _weights_fetched_by_a_joiner(5) <= 1.5 * few
