"""What a node says about the membership: proposals, approvals, and that a guest is ready."""

from typing import Any

import pytest
from msgspec.structs import replace

from defl.changes import Add, Approve, Change, Ready, Remove, Rounds
from defl.committee import Federation
from defl.crypto import Signer
from defl.ids import OUTSIDER, Digest, NodeId, Round
from defl.ledger import LedgerState
from defl.output import ClosedRound
from defl.own_changes import APPROVALS_MAX, OwnChanges
from defl.sim.signer import NoopSigner
from defl.succession import PendingChange, ReadyKey
from support.builders import Small, name, nodes

SMALL = Small(4, real=False, rounds=9)
FACTS: Federation = SMALL.federation
EVE = NoopSigner(name("eve's key"))
JOINS = Add(SMALL.card(EVE, "eve"))
LONGER = Rounds(Round(20))


def own(me: int = 0, signer: Signer | None = None) -> OwnChanges:
    return OwnChanges(FACTS, NodeId(me), signer or SMALL.signers[me])


def state(round_: int = 0, *changes: PendingChange, **fields: Any) -> LedgerState:
    return replace(SMALL.ledger.genesis(), round=Round(round_), changes=changes, **fields)


def pending(author: int, *operations: Any, round_: int = 1, approvals: Any = ()) -> PendingChange:
    digest = SMALL.change(author, round_, *operations).digest
    return PendingChange(Round(round_), NodeId(author), digest, operations, approvals)


def test_a_proposal_is_signed_once_per_round_until_the_ledger_has_it() -> None:
    mine = own()
    mine.propose((LONGER,))

    assert mine.due(state()) == [SMALL.change(0, 1, LONGER)]
    assert mine.due(state()) == []
    assert mine.due(state(1)) == [SMALL.change(0, 2, LONGER)]
    assert mine.pending
    assert mine.due(state(2, pending(0, LONGER, round_=2))) == []
    assert not mine.pending


def test_a_second_proposal_waits_for_the_next_round() -> None:
    """One CHANGE per author and round: another would not count."""
    mine = own()
    mine.propose((LONGER,))
    first = pending(0, LONGER)
    mine.due(state())
    mine.due(state(0, first))
    mine.propose((JOINS,))

    assert mine.due(state(0, first)) == []
    assert mine.due(state(1, first)) == [SMALL.change(0, 2, JOINS)]


def test_a_node_that_restarts_after_its_change_signs_no_other_in_that_round() -> None:
    """The new process does not know what it signed, but the ledger shows it."""
    first = pending(0, LONGER)
    restarted = own()
    restarted.propose((JOINS,))

    assert restarted.due(state(0, first)) == []
    assert restarted.due(state(1, first)) == [SMALL.change(0, 2, JOINS)]


def test_an_empty_proposal_withdraws_the_recorded_one() -> None:
    mine = own()
    first = pending(0, LONGER)
    mine.propose(())

    assert mine.due(state(1, first)) == [SMALL.change(0, 2)]
    assert mine.due(state(2)) == []
    assert not mine.pending


def test_an_approval_is_signed_once_its_change_is_recorded_and_again_in_each_round() -> None:
    mine = own()
    change = pending(1, LONGER)
    mine.approve(change.digest)
    assert mine.due(state()) == []

    approve = SMALL.approve(0, 1, SMALL.change(1, 1, LONGER))
    assert mine.due(state(0, change)) == [approve]
    assert mine.due(state(0, change)) == []
    assert [type(tx) for tx in mine.due(state(1, change))] == [Approve]
    assert mine.due(state(2, pending(1, LONGER, approvals=nodes(0, 1)))) == []
    assert not mine.pending


def answers(mine: OwnChanges, now: LedgerState) -> list[tuple[int, bool]]:
    """Round and answer of each APPROVE that is due."""
    return [(tx.round, tx.agrees) for tx in mine.due(now) if isinstance(tx, Approve)]


def test_an_approval_is_withdrawn_until_the_ledger_has_it() -> None:
    mine = own()
    approved = pending(1, LONGER, approvals=nodes(0, 1))
    mine.approve(approved.digest, agrees=False)

    assert answers(mine, state(0, approved)) == [(1, False)]
    assert answers(mine, state(0, approved)) == []
    assert answers(mine, state(1, approved)) == [(2, False)]
    assert answers(mine, state(1, approved.withdrawn_by(NodeId(0)))) == []
    assert not mine.pending


def test_an_approval_that_is_on_its_way_is_withdrawn_too() -> None:
    """The ledger does not have it yet, and it may have been signed by an earlier process."""
    mine = own()
    change = pending(1, LONGER, approvals=nodes(1))
    mine.approve(change.digest, agrees=False)

    assert answers(mine, state(0, change)) == [(1, False)]
    assert mine.pending
    assert answers(mine, state(1, change)) == [], "an approval of round 1 counts no more"
    assert not mine.pending


def test_a_withdrawal_ends_with_its_change() -> None:
    mine = own()
    mine.approve(pending(1, LONGER).digest, agrees=False)

    assert answers(mine, state(1)) == []
    assert not mine.pending


def test_after_a_withdrawal_the_member_may_agree_again_in_the_next_round() -> None:
    mine = own()
    approved = pending(1, LONGER, approvals=nodes(0, 1))
    withdrawn = approved.withdrawn_by(NodeId(0))
    mine.approve(approved.digest, agrees=False)
    mine.due(state(0, approved))
    mine.approve(approved.digest)

    assert answers(mine, state(0, approved)) == []
    assert mine.pending, "its withdrawal is still on its way"
    assert answers(mine, state(0, withdrawn)) == []
    assert answers(mine, state(1, replace(withdrawn, withdrawn=()))) == [(2, True)]
    assert answers(mine, state(1, approved)) == []
    assert not mine.pending


def test_approvals_that_wait_are_bounded() -> None:
    mine = own()
    for number in range(2 * APPROVALS_MAX):
        mine.approve(Digest(name(str(number))))
    first, last = (pending(1, LONGER), pending(2, LONGER))

    assert len(mine._answers) == APPROVALS_MAX
    mine.approve(last.digest)
    assert mine.due(state(0, first, last)) == []


@pytest.mark.parametrize("why", ["outsider", "ended", "after the last round"])
def test_nothing_is_said_where_it_cannot_count(why: str) -> None:
    mine = own() if why != "outsider" else OwnChanges(FACTS, OUTSIDER, EVE)
    mine.propose((LONGER,))
    mine.approve(pending(1, JOINS).digest)
    now = state(9 if why == "after the last round" else 3, pending(1, JOINS), ended=why == "ended")

    assert mine.due(now) == []


def test_a_guest_is_ready_once_it_has_the_base_of_a_kept_round() -> None:
    guest = OwnChanges(FACTS, OUTSIDER, EVE)
    closed = tuple(_closed(round_) for round_ in (1, 2))
    now = state(2, pending(0, JOINS), closed=closed)

    assert guest.ready(now, set(), again=False) is None
    ready = guest.ready(now, {closed[0].base}, again=False)
    assert ready == SMALL.ready(EVE, 3, closed[0].base)
    assert guest.ready(now, {closed[0].base}, again=False) is None, "once"
    again = guest.ready(now, {one.base for one in closed}, again=True)
    assert again == SMALL.ready(EVE, 3, closed[1].base), "it may not have arrived"
    recorded = replace(now, ready=(ReadyKey(EVE.public_key, Round(3)),))
    assert guest.ready(recorded, {closed[0].base}, again=True) is None
    later = replace(recorded, round=Round(3))
    assert guest.ready(later, {closed[0].base}, again=False) is not None, "each round anew"


def _closed(round_: int) -> ClosedRound:
    return ClosedRound(Round(round_), name("block"), name(f"base {round_}"), (), 0, 1)


def test_only_a_guest_of_a_pending_change_is_ready() -> None:
    closed = _closed(1)
    now = state(1, pending(0, JOINS), closed=(closed,))
    mallory = NoopSigner(name("mallory"))

    assert OwnChanges(FACTS, OUTSIDER, mallory).ready(now, {closed.base}, again=True) is None
    assert own().ready(now, {closed.base}, again=True) is None
    guest = OwnChanges(FACTS, OUTSIDER, EVE)
    assert guest.ready(replace(now, ended=True), {closed.base}, again=True) is None
    assert guest.ready(replace(now, changes=()), {closed.base}, again=True) is None


def test_signed_changes_name_the_epoch_and_the_chain() -> None:
    change = Change(Round(1), NodeId(0), (Remove(NodeId(3)),), b"")
    ready = Ready(Round(1), EVE.public_key, name("model"), b"")
    for unsigned in (change, ready):
        statements = {
            unsigned.statement(name("a"), 0),
            unsigned.statement(name("b"), 0),
            unsigned.statement(name("a"), 1),
        }
        assert len(statements) == 3
