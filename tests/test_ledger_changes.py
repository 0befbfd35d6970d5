"""CHANGE, APPROVE and READY in the ledger: what counts, for how long, and what ends an epoch."""

from collections.abc import Iterable
from functools import partial

import pytest
from msgspec.structs import replace

from defl.changes import (
    CHANGE_BYTES_MAX,
    OPERATIONS_MAX,
    Add,
    Change,
    Operation,
    Ready,
    Remove,
    Rounds,
)
from defl.committee import Federation
from defl.ids import Digest, NodeId, Round
from defl.ledger import Ledger, LedgerState
from defl.messages import Transaction, slot_of
from defl.output import Response
from defl.sim.signer import NoopSigner
from defl.succession import PendingChange, ReadyKey, next_membership, wanted_keys
from defl.wire import control_frame_bytes_max
from support.builders import Small, name, nodes
from test_ledger import Log

OK = Response.OK
NOT_PENDING = Response.NOT_PENDING
ENDED = Response.EPOCH_ENDED

SMALL = Small(5, real=False, rounds=10)  # f = 1, q = 4, tau = 2
EVE = NoopSigner(name("eve's key"))
MALLORY = NoopSigner(name("mallory's key"))
JOINS = Add(SMALL.card(EVE, "eve"))
LONGER = Rounds(Round(20))
START = SMALL.federation.initial  # every update's base here


def change(author: int, round_: int, *operations: Operation) -> Change:
    return SMALL.change(author, round_, *operations)


def log_in_round(round_: int, small: Small = SMALL) -> Log:
    """The round is open."""
    log = Log(small)
    for _ in range(round_ - 1):
        log.close_round()
    return log


def ready(round_: int, key: NoopSigner = EVE, model: Digest = START) -> Ready:
    return SMALL.ready(key, round_, model)


def agreed(log: Log, author: int, *operations: Operation) -> Change:
    """Propose and approve in the open round."""
    open_round = log.state.round + 1
    proposal = change(author, open_round, *operations)
    others = [m for m in range(SMALL.size) if m != author][: SMALL.quorum - 1]
    responses = log.commit(proposal, *(SMALL.approve(m, open_round, proposal) for m in others))
    assert set(responses) == {OK}
    return proposal


# --- CHANGE ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("named", "answer"), [(1, NOT_PENDING), (2, OK), (3, NOT_PENDING)])
def test_a_change_counts_in_the_round_that_it_names(named: int, answer: Response) -> None:
    log = log_in_round(2)

    assert log.answer(change(0, named, JOINS)) is answer


def test_who_proposes_a_change_approves_it() -> None:
    log = Log(SMALL)
    log.commit(change(2, 1, JOINS))

    (pending,) = log.state.changes
    assert (pending.author, pending.approvals, pending.operations) == (2, nodes(2), (JOINS,))


def test_an_author_proposes_once_per_round() -> None:
    log = Log(SMALL)

    assert log.commit(change(0, 1, JOINS), change(0, 1, LONGER)) == (OK, NOT_PENDING)
    assert [pending.operations for pending in log.state.changes] == [(JOINS,)]


def test_a_newer_change_takes_the_place_of_its_authors_older_one() -> None:
    """With its approvals, and with its place in the log's order."""
    log = Log(SMALL)
    agreed(log, 0, JOINS)
    log.commit(change(1, 1, LONGER))
    log.close_round()

    assert log.answer(change(0, 2, JOINS, LONGER)) is OK
    assert [pending.author for pending in log.state.changes] == [1, 0]
    assert log.state.changes[-1].approvals == nodes(0)


def test_an_empty_change_withdraws_the_authors_last_one_and_no_other() -> None:
    log = Log(SMALL)
    agreed(log, 0, LONGER)
    log.commit(change(1, 1, JOINS), change(2, 1))
    assert log.answer(change(0, 1)) is NOT_PENDING, "once per round"
    log.close_round()
    assert log.state.ended, "it was agreed before its author could withdraw it"

    log = Log(SMALL)
    log.commit(change(0, 1, LONGER), change(1, 1, JOINS))
    log.close_round()
    log.commit(change(0, 2))
    log.close_round()
    assert [pending.author for pending in log.state.changes] == [1]


def test_a_withdrawn_change_cannot_be_approved() -> None:
    log = Log(SMALL)
    proposal = change(0, 1, LONGER)
    log.commit(proposal)
    log.close_round()
    log.commit(change(0, 2))

    assert log.answer(SMALL.approve(1, 2, proposal)) is NOT_PENDING


# --- APPROVE ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("named", "answer"), [(1, NOT_PENDING), (2, OK), (3, NOT_PENDING)])
def test_an_approval_counts_in_the_round_that_it_names(named: int, answer: Response) -> None:
    log = Log(SMALL)
    proposal = change(0, 1, LONGER)
    log.commit(proposal)
    log.close_round()

    assert log.answer(SMALL.approve(1, named, proposal)) is answer


def test_a_member_approves_a_change_once_and_may_approve_several() -> None:
    log = Log(SMALL)
    first, second = change(0, 1, LONGER), change(1, 1, JOINS)
    log.commit(first, second)
    approve = partial(SMALL.approve, 2, 1)

    assert log.commit(approve(first), approve(first), approve(second)) == (OK, NOT_PENDING, OK)
    assert [pending.approvals for pending in log.state.changes] == [nodes(0, 2), nodes(1, 2)]


def test_the_same_operations_of_another_author_are_another_change() -> None:
    """Approvals of one are not approvals of the other, whose author may take it back."""
    log = Log(SMALL)
    first, second = change(0, 1, LONGER), change(1, 1, LONGER)
    log.commit(first, second)
    log.commit(SMALL.approve(2, 1, first), SMALL.approve(3, 1, second))
    log.close_round()

    assert [len(pending.approvals) for pending in log.state.changes] == [2, 2]
    assert not log.state.ended


APPROVES, WITHDRAWS = True, False


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        # (round, agrees) of one member's statements, in the order of the log
        ([(1, APPROVES)], True),
        ([(1, APPROVES), (1, WITHDRAWS)], False),
        ([(1, WITHDRAWS), (1, APPROVES)], False),  # the approval was on its way: it is too late
        ([(1, APPROVES), (1, WITHDRAWS), (1, APPROVES)], False),  # the old one is repeated
        ([(1, APPROVES), (2, WITHDRAWS)], False),
        ([(1, APPROVES), (2, WITHDRAWS), (2, APPROVES)], False),
        ([(1, APPROVES), (2, WITHDRAWS), (1, APPROVES)], False),
        ([(1, APPROVES), (1, WITHDRAWS), (2, APPROVES)], True),
        ([(1, APPROVES), (1, WITHDRAWS), (2, APPROVES), (1, WITHDRAWS)], True),
        ([(1, APPROVES), (1, WITHDRAWS), (2, APPROVES), (2, WITHDRAWS)], False),
        ([(1, WITHDRAWS), (2, APPROVES)], True),
    ],
)
def test_an_approval_counts_until_it_is_withdrawn_and_no_old_one_revives_it(
    said: list[tuple[int, bool]], counts: bool
) -> None:
    log = Log(SMALL)
    proposal = change(0, 1, LONGER)
    log.commit(proposal)
    for round_, agrees in said:
        while log.state.round + 1 < round_:
            log.close_round()
        log.commit(SMALL.approve(1, round_, proposal, agrees=agrees))

    (pending,) = log.state.changes
    assert pending.approvals == (nodes(0, 1) if counts else nodes(0))


def test_a_withdrawn_approval_keeps_an_agreed_change_from_taking_effect() -> None:
    log = Log(SMALL)
    proposal = agreed(log, 0, LONGER)
    assert log.answer(SMALL.approve(1, 1, proposal, agrees=False)) is OK
    log.close_round()
    assert not log.state.ended

    assert log.answer(SMALL.approve(4, 2, proposal)) is OK
    log.close_round()
    assert log.state.ended


def test_one_block_may_hold_an_approval_and_its_withdrawal() -> None:
    log = Log(SMALL)
    proposal = change(0, 1, LONGER)
    answers = [SMALL.approve(1, 1, proposal, agrees=agrees) for agrees in (True, False)]

    assert len({slot_of(answer) for answer in answers}) == 2
    assert log.commit(proposal, *answers) == (OK, OK, OK)
    assert log.state.changes[0].approvals == nodes(0)


def test_the_signature_of_an_approval_is_none_of_a_withdrawal() -> None:
    approval = SMALL.approve(1, 1, change(0, 1, LONGER))
    withdrawal = replace(approval, agrees=False)
    chain, epoch = SMALL.federation.chain, SMALL.federation.epoch

    assert approval.statement(chain, epoch) != withdrawal.statement(chain, epoch)


def test_a_member_withdraws_a_change_once_per_round() -> None:
    log = Log(SMALL)
    proposal = change(0, 1, LONGER)
    log.commit(proposal)
    withdraw = SMALL.approve(1, 1, proposal, agrees=False)

    assert log.commit(withdraw, withdraw) == (OK, NOT_PENDING)
    log.close_round()
    assert log.state.changes[0].withdrawn == (), "it is forgotten when the round closes"


def test_a_repeated_proposal_revives_no_withdrawn_approval_of_its_round() -> None:
    """The same operations of the same author have the same digest."""
    log = Log(SMALL)
    proposal = change(0, 1, LONGER)
    log.commit(proposal)
    log.close_round()
    approval = SMALL.approve(1, 2, proposal)
    for author in (0, 1):
        log.commit(SMALL.approve(author, 2, proposal, agrees=False))

    assert log.commit(change(0, 2, LONGER), approval) == (OK, NOT_PENDING)
    assert log.state.changes[0].approvals == ()


def test_the_author_of_a_leave_that_withdraws_its_approval_stays() -> None:
    log = Log(Small(8, real=False, rounds=10))
    small = log.small
    leave = small.change(7, 1, Remove(NodeId(7)))
    log.commit(leave, small.approve(7, 1, leave, agrees=False))
    log.close_round()
    assert not log.state.ended

    log.commit(small.approve(7, 2, leave))
    log.close_round()
    assert log.state.ended


def test_a_change_of_the_future_cannot_be_approved() -> None:
    assert Log(SMALL).answer(SMALL.approve(1, 1, change(0, 1, LONGER))) is NOT_PENDING


# --- READY -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "answer"), [(1, NOT_PENDING), (2, OK), (3, OK), (4, NOT_PENDING)]
)
def test_a_ready_names_the_open_round_or_the_one_before(named: int, answer: Response) -> None:
    log = log_in_round(3)
    log.commit(change(0, 3, JOINS))

    assert log.answer(ready(named)) is answer


def test_only_the_newest_ready_of_a_key_is_kept() -> None:
    log = log_in_round(3)
    log.commit(change(0, 3, JOINS))

    assert log.commit(ready(2), ready(2), ready(3), ready(2)) == (OK, NOT_PENDING, OK, NOT_PENDING)
    assert log.state.ready == (ReadyKey(EVE.public_key, Round(3)),)


def test_a_ready_of_a_key_that_no_change_wants_leaves_no_trace() -> None:
    log = log_in_round(2)
    assert log.answer(ready(2)) is NOT_PENDING

    log.commit(change(0, 2, JOINS))
    assert (
        log.commit(*(ready(2, NoopSigner(name(f"key {i}"))) for i in range(50)))
        == (NOT_PENDING,) * 50
    )
    assert log.state.ready == ()


def test_many_ready_of_a_peer_search_the_pending_changes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are judged before their signatures are checked and charged to the peer."""
    log = log_in_round(2)
    log.commit(change(0, 2, JOINS))
    searched: list[object] = []

    def search(changes: Iterable[PendingChange]) -> frozenset[bytes]:
        searched.append(changes)
        return wanted_keys(changes)

    monkeypatch.setattr("defl.ledger.wanted_keys", search)
    ledger = Ledger(SMALL.federation)
    for i in range(100):
        assert not ledger.wanted(log.state, ready(2, NoopSigner(name(f"key {i}"))))
    assert ledger.wanted(log.state, ready(2))

    assert len(searched) <= 1


def test_a_ready_is_forgotten_with_the_change_that_wants_its_key() -> None:
    log = log_in_round(2)
    log.commit(change(0, 2, JOINS), ready(2))
    log.close_round()
    assert log.state.ready != ()
    log.commit(change(0, 3))

    assert log.state.ready == ()


def test_a_ready_names_the_base_of_a_kept_round() -> None:
    """A machine without a model that is still of use is not up to date."""
    log = log_in_round(2)
    log.commit(change(0, 2, JOINS))

    assert log.answer(ready(2, model=name("another model"))) is NOT_PENDING
    assert log.answer(ready(2, model=START)) is OK


def test_nobody_is_ready_before_a_round_has_closed() -> None:
    log = Log(SMALL)
    log.commit(change(0, 1, JOINS))

    assert log.commit(ready(0), ready(1)) == (NOT_PENDING, NOT_PENDING)


def test_a_joiner_that_was_ready_and_died_does_not_end_the_epoch() -> None:
    """Approved four rounds after its last READY: no boundary. Alive and renewed: a boundary."""
    log = log_in_round(2)
    proposal = change(0, 2, JOINS)
    log.commit(proposal, ready(2))
    for _ in range(4):
        log.close_round()
    approvals = [SMALL.approve(member, 6, proposal) for member in (1, 2, 3)]
    log.commit(*approvals)
    log.close_round()
    assert not log.state.ended

    log.commit(ready(7))
    log.close_round()
    assert log.state.ended


# --- The end of an epoch ---------------------------------------------------------------------


def test_pending_changes_and_approvals_stay_until_the_epoch_ends() -> None:
    log = log_in_round(2)
    proposal = agreed(log, 0, JOINS)
    log.close_round()
    log.close_round()

    (pending,) = log.state.changes
    assert pending.digest == proposal.digest
    assert len(pending.approvals) == SMALL.quorum
    assert not log.state.ended


def test_from_the_closing_transaction_on_nothing_executes() -> None:
    """Also inside the block that it stands in, whatever a lying leader puts behind it."""
    log = Log(SMALL)
    agreed(log, 0, LONGER)
    other = change(1, 1, JOINS)
    log.commit(other)
    updates = [SMALL.upd(author, 1) for author in range(5)]
    suffix: list[Transaction] = [SMALL.upd(0, 2), SMALL.agg(1, 2), change(2, 2, Remove(NodeId(4)))]
    suffix += [SMALL.approve(2, 1, other), SMALL.approve(2, 2, other), ready(2)]
    responses = log.commit(*updates, *suffix)

    assert responses == (OK,) * 5 + (ENDED,) * len(suffix)
    assert log.state.ended
    assert log.state.current == log.state.voters == ()
    assert log.state.change(other.digest) is not None
    assert log.state.change(other.digest).approvals == nodes(1)  # type: ignore[union-attr]
    assert log.commit(SMALL.upd(1, 2), SMALL.agg(1, 2)) == (ENDED, ENDED)
    genesis = genesis_after(log.state)
    assert genesis == LedgerState(Round(1), (), (), log.state.closed)


def genesis_after(state: LedgerState) -> LedgerState:
    facts = SMALL.federation
    membership = next_membership(facts, state.round, state.changes, state.ready)
    assert membership is not None
    return Ledger(Federation(facts.charter, membership), state.closed).genesis()


def test_without_an_agreed_change_the_block_that_closes_a_round_goes_on() -> None:
    log = Log(SMALL)
    log.commit(change(0, 1, LONGER))
    updates = [SMALL.upd(author, 1) for author in range(5)]

    assert log.commit(*updates, SMALL.upd(0, 2)) == (OK,) * 6
    assert [ref.author for ref in log.state.current] == [0]
    assert not log.state.ended


def test_an_ended_epoch_wants_no_transaction() -> None:
    log = Log(SMALL)
    proposal = agreed(log, 0, LONGER)
    log.close_round()
    late: tuple[Transaction, ...] = (
        SMALL.upd(0, 2), SMALL.agg(0, 2), change(1, 2, JOINS), SMALL.approve(4, 2, proposal),
        ready(2), SMALL.upd(0, 3), SMALL.agg(0, 3), change(1, 3),
    )  # fmt: skip

    assert not any(SMALL.ledger.wanted(log.state, transaction) for transaction in late)


def test_changes_of_the_next_round_are_kept_for_it_and_approvals_are_not() -> None:
    """An approval can only count for a change that is recorded."""
    log = Log(SMALL)
    wanted = partial(SMALL.ledger.wanted, log.state)

    assert wanted(change(0, 2, LONGER))
    assert not wanted(change(0, 3, LONGER))
    assert not wanted(SMALL.approve(0, 2, change(1, 2, LONGER)))


@pytest.mark.parametrize("in_time", [True, False])
def test_an_extension_counts_if_it_is_approved_before_the_last_round_closes(in_time: bool) -> None:
    small = Small(5, real=False, rounds=2)
    log = log_in_round(2, small)
    longer = small.change(0, 2, Rounds(Round(4)))
    approvals = [small.approve(member, 2, longer) for member in (1, 2, 3)]
    log.commit(longer, *(approvals if in_time else approvals[:2]))
    log.close_round()
    assert log.state.ended is in_time

    late = [small.approve(member, 3, longer) for member in (2, 3)]
    assert set(log.commit(*late)) == {ENDED if in_time else NOT_PENDING}
    assert log.state.ended is in_time


def test_a_closed_round_states_its_epoch_and_the_faults_of_that_epoch() -> None:
    facts = replace(SMALL.federation, membership=replace(SMALL.federation.membership, epoch=3))
    ledger = Ledger(facts)
    block = SMALL.block(tuple(SMALL.upd(author, 1) for author in range(5)))
    state, _ = ledger.execute(ledger.genesis(), block)

    assert state.last is not None
    assert (state.last.epoch, state.last.faults_max) == (3, 1)


# --- Bounds ----------------------------------------------------------------------------------


def test_changes_as_large_as_allowed_in_every_round_do_not_let_the_state_grow() -> None:
    """One pending change per author, however often it is replaced."""
    certificate = b"c" * (CHANGE_BYTES_MAX // OPERATIONS_MAX - 250)
    log = log_in_round(2)
    sizes = []
    for _ in range(6):
        open_round = log.state.round + 1
        for author in range(5):
            signers = [
                NoopSigner(name(f"{author} {open_round} {i}")) for i in range(OPERATIONS_MAX)
            ]
            cards = [SMALL.card(s, f"{author} {i}", certificate) for i, s in enumerate(signers)]
            log.commit(change(author, open_round, *(Add(one) for one in cards)))
            log.commit(*(ready(open_round, signer) for signer in signers))
        sizes.append(len(SMALL.ledger.encode(log.state)))
        assert len(log.state.changes) == 5
        assert len(log.state.ready) == 5 * OPERATIONS_MAX
        log.close_round()

    assert max(sizes) <= sizes[1] + 100  # the first has fewer closed rounds
    assert max(sizes) < control_frame_bytes_max(5)
