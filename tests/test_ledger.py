"""The safe form of Algorithm 2: the response to each committed transaction, and when a round
closes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from defl.committee import AggQuorum
from defl.ids import NodeId, Round
from defl.ledger import LedgerState
from defl.messages import Transaction
from defl.output import Response
from defl.succession import PendingChange, ReadyKey
from support.builders import Small, name, nodes

OK = Response.OK
ALREADY_UPD = Response.ALREADY_UPD
ALREADY_AGG = Response.ALREADY_AGG
NOT_MEET_QUORUM = Response.NOT_MEET_QUORUM
NOT_ENOUGH_UPDATES = Response.NOT_ENOUGH_UPDATES

SMALL = Small(real=False, rounds=10)  # n = 4, f = 1, q = 3, tau = 2
LIE = name("a base that no honest member trained from")


class Log:
    """A ledger fed one block at a time."""

    def __init__(self, small: Small = SMALL) -> None:
        self.small = small
        self.state = small.ledger.genesis()
        self.height = 0

    def commit(self, *transactions: Transaction) -> tuple[Response, ...]:
        self.height += 1
        block = self.small.block(tuple(transactions), height=self.height)
        self.state, responses = self.small.ledger.execute(self.state, block)
        return responses

    def answer(self, transaction: Transaction) -> Response:
        (response,) = self.commit(transaction)
        return response

    def close_round(self) -> None:
        round_ = self.state.round + 1
        self.commit(*(self.small.upd(author, round_) for author in range(self.small.size)))
        assert self.state.round == round_

    @property
    def updated(self) -> tuple[NodeId, ...]:
        return tuple(ref.author for ref in self.state.current)


def upd(author: int, round_: int = 1, **fields: Any) -> Transaction:
    return SMALL.upd(author, round_, **fields)


def agg(author: int, round_: int = 1) -> Transaction:
    return SMALL.agg(author, round_)


# --- The paper's responses -------------------------------------------------------------------


def test_an_update_for_the_open_round_is_accepted() -> None:
    log = Log()

    assert log.answer(upd(2)) is OK
    assert log.updated == nodes(2)


@pytest.mark.parametrize("target", [0, 2, 3])
def test_an_update_for_another_round_is_already_upd(target: int) -> None:
    log = Log()

    assert log.answer(upd(2, target)) is ALREADY_UPD
    assert log.state == SMALL.ledger.genesis()


@pytest.mark.parametrize("target", [0, 2, 3])
def test_an_agg_for_another_round_is_already_agg(target: int) -> None:
    log = Log()

    assert log.answer(agg(2, target)) is ALREADY_AGG
    assert log.state == SMALL.ledger.genesis()


def test_the_agg_that_completes_the_quorum_closes_the_round_and_answers_ok() -> None:
    log = Log()
    log.commit(upd(0), upd(1), upd(2))

    assert [log.answer(agg(author)) for author in (0, 1, 2)] == [
        NOT_MEET_QUORUM,
        NOT_MEET_QUORUM,
        OK,
    ]
    assert log.state.round == 1
    assert log.answer(agg(3)) is ALREADY_AGG
    assert log.answer(upd(3)) is ALREADY_UPD


def test_an_agg_quorum_without_enough_updates_is_recorded_and_answered_with_the_shortage() -> None:
    log = Log()
    log.commit(upd(0), upd(1))

    assert [log.answer(agg(author)) for author in (0, 1, 2)] == [
        NOT_MEET_QUORUM,
        NOT_MEET_QUORUM,
        NOT_ENOUGH_UPDATES,
    ]
    assert log.state.voters == nodes(0, 1, 2)
    assert log.state.round == 0


def test_the_last_agg_before_the_last_update_closes_with_that_update() -> None:
    """No member needs to send its AGG again."""
    log = Log()
    log.commit(upd(0), upd(1), agg(0), agg(1), agg(2))
    assert log.state.round == 0

    assert log.answer(upd(2)) is OK
    assert log.state.round == 1
    assert [ref.author for ref in log.state.closed[0].updates] == [0, 1, 2]


# --- One update and one AGG per member -------------------------------------------------------


def test_the_first_committed_update_of_an_author_wins() -> None:
    log = Log()
    first = upd(1, digest=name("first"))
    log.commit(first)

    assert log.answer(upd(1, digest=name("second"))) is ALREADY_UPD
    assert log.answer(first) is ALREADY_UPD
    assert [ref.digest for ref in log.state.current] == [name("first")]


def test_a_second_update_of_one_author_does_not_help_to_close_a_round() -> None:
    log = Log()
    log.commit(agg(0), agg(1), agg(2), upd(0), upd(1), upd(1, digest=name("second")))

    assert log.state.round == 0
    assert log.updated == nodes(0, 1)


def test_a_repeated_agg_answers_the_same_and_counts_once() -> None:
    log = Log()
    log.commit(upd(0), upd(1), upd(2))

    assert [log.answer(agg(3)) for _ in range(5)] == [NOT_MEET_QUORUM] * 5
    assert log.state.voters == nodes(3)
    assert log.state.round == 0


def test_a_repeated_agg_after_the_quorum_gets_the_same_answer_while_updates_are_missing() -> None:
    log = Log()
    log.commit(agg(0), agg(1), agg(2))

    assert [log.answer(agg(2)) for _ in range(2)] == [NOT_ENOUGH_UPDATES] * 2


# --- When a round closes ---------------------------------------------------------------------


def test_a_round_closes_without_aggs_when_all_members_have_updated() -> None:
    log = Log()
    log.commit(upd(3), upd(0), upd(2))
    assert log.state.round == 0

    assert log.answer(upd(1)) is OK
    assert log.state.round == 1
    assert [ref.author for ref in log.state.closed[0].updates] == [0, 1, 2, 3]
    assert (log.state.current, log.state.voters) == ((), ())


def test_all_members_aggs_do_not_close_a_round_on_too_few_updates() -> None:
    log = Log()
    log.commit(upd(0), upd(1), *(agg(author) for author in range(4)))

    assert log.state.round == 0


def test_updates_with_different_bases_do_not_close_a_round() -> None:
    """Three updates, one of them by a liar with another base."""
    log = Log()
    log.commit(upd(0), upd(1), upd(3, base=LIE), agg(0), agg(1), agg(2))
    assert log.state.round == 0

    log.commit(upd(2))
    assert log.state.round == 1
    closed = log.state.closed[0]
    assert closed.base == SMALL.federation.initial
    assert [ref.author for ref in closed.updates] == [0, 1, 2]


def test_a_round_stays_open_if_all_have_updated_but_too_few_share_a_base() -> None:
    log = Log()
    log.commit(upd(0), upd(1), upd(2, base=LIE), upd(3, base=LIE))
    log.commit(*(agg(author) for author in range(4)))

    assert log.state.round == 0


def test_a_closed_round_names_the_block_that_closed_it() -> None:
    log = Log()
    log.commit(upd(0), upd(1), upd(2))
    block = SMALL.block((agg(0), agg(1), agg(2)), view=9)
    state, _ = SMALL.ledger.execute(log.state, block)

    assert state.closed[0].block == block.id


def test_a_round_may_close_in_the_middle_of_a_block_and_the_next_opens_at_once() -> None:
    log = Log()
    responses = log.commit(
        upd(0),
        upd(1),
        upd(2),
        agg(0),
        agg(1),
        upd(0, 2),
        agg(2),
        agg(3),
        upd(3),
        upd(1, 2),
        agg(1, 2),
    )

    assert responses == (
        OK, OK, OK, NOT_MEET_QUORUM, NOT_MEET_QUORUM,
        ALREADY_UPD,  # too early by two transactions
        OK,  # this one closes round 1
        ALREADY_AGG, ALREADY_UPD, OK, NOT_MEET_QUORUM,
    )  # fmt: skip
    assert log.state.round == 1
    assert log.updated == nodes(1)
    assert log.state.voters == nodes(1)


def test_the_papers_agg_quorum_is_f_plus_one_and_still_needs_the_updates() -> None:
    log = Log(Small(real=False, agg_quorum=AggQuorum.PAPER))
    log.commit(upd(0), upd(1))

    assert [log.answer(agg(author)) for author in (0, 3)] == [NOT_MEET_QUORUM, NOT_ENOUGH_UPDATES]
    assert log.answer(upd(2)) is OK
    assert log.state.round == 1


def test_seven_members_need_five_updates_with_one_base_and_five_voters() -> None:
    small = Small(7, real=False)
    log = Log(small)
    log.commit(*(small.upd(author, 1) for author in range(4)))
    log.commit(*(small.agg(author, 1) for author in range(4)))
    log.commit(small.upd(4, 1))
    assert log.state.round == 0

    assert log.answer(small.agg(6, 1)) is OK
    assert log.state.round == 1


def test_nothing_changes_the_state_after_the_last_round() -> None:
    small = Small(real=False, rounds=2)
    log = Log(small)
    log.close_round()
    log.close_round()
    end = log.state

    assert log.commit(small.upd(0, 3), small.agg(0, 3)) == (ALREADY_UPD, ALREADY_AGG)
    assert log.state == end


@pytest.mark.parametrize("tau", [2, 3])
def test_tau_closed_rounds_are_kept(tau: int) -> None:
    log = Log(Small(real=False, rounds=10, tau=tau))
    for _ in range(6):
        log.close_round()

    assert [closed.round for closed in log.state.closed] == list(range(7 - tau, 7))
    assert log.state.last == log.state.closed[-1]


# --- Retention -------------------------------------------------------------------------------


def test_live_and_wanted_select_what_may_still_change_the_state() -> None:
    small = Small(real=False, rounds=2)
    log = Log(small)
    log.commit(small.upd(0, 1), small.agg(0, 1))
    ledger, state = small.ledger, log.state

    assert [ledger.live(state, small.upd(author, 1)) for author in (0, 1)] == [False, True]
    assert [ledger.live(state, small.agg(author, 1)) for author in (0, 1)] == [False, True]
    assert not ledger.live(state, small.upd(0, 2))
    assert ledger.wanted(state, small.upd(0, 2))
    assert ledger.wanted(state, small.agg(0, 2))
    assert not ledger.wanted(state, small.upd(0, 1))
    assert not ledger.wanted(state, small.upd(0, 3))
    log.commit(*(small.upd(author, 1) for author in (1, 2, 3)))
    assert not ledger.wanted(log.state, small.upd(0, 3)), "there is no third round"


# --- State and root --------------------------------------------------------------------------


def rich_state() -> LedgerState:
    log = Log()
    log.close_round()
    log.close_round()
    log.commit(upd(0, 3), upd(2, 3), agg(3, 3))
    change = PendingChange(Round(3), NodeId(1), name("a change"), (), nodes(1, 2))
    ready = ReadyKey(b"k" * 32, Round(3))
    return replace(log.state, changes=(change,), ready=(ready,))


def test_a_state_survives_encoding_and_decoding() -> None:
    for state in (SMALL.ledger.genesis(), rich_state()):
        assert SMALL.ledger.decode(SMALL.ledger.encode(state)) == state


def leaves(value: object, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    if isinstance(value, list):
        return [leaf for i, inner in enumerate(value) for leaf in leaves(inner, (*path, i))]
    return [path]


def another(value: bool | int | bytes) -> bool | int | bytes:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else bytes([value[0] ^ 1]) + value[1:]


def test_the_state_root_changes_with_every_field() -> None:
    ledger = SMALL.ledger
    encoded = ledger.encode(rich_state())
    roots = {ledger.root_of(encoded)}
    paths = leaves(msgspec.msgpack.decode(encoded))
    for path in paths:
        tree = msgspec.msgpack.decode(encoded)
        inside = tree
        for place in path[:-1]:
            inside = inside[place]
        inside[path[-1]] = another(inside[path[-1]])
        roots.add(ledger.root_of(ledger.encode(ledger.decode(msgspec.msgpack.encode(tree)))))

    assert len(paths) > 50
    assert len(roots) == len(paths) + 1


def test_the_state_is_the_same_whatever_the_order_of_a_rounds_transactions() -> None:
    one, other = Log(), Log()
    one.commit(upd(0), upd(2), agg(1), agg(3))
    other.commit(agg(3), upd(2), agg(1), upd(0))

    assert one.state == other.state


# --- Any sequence ----------------------------------------------------------------------------

FIVE = Small(5, real=False, rounds=4)  # n = 5, f = 1, q = 4
TRANSACTIONS = {
    (kind, author, round_, base): FIVE.agg(author, round_)
    if kind == "AGG"
    else FIVE.upd(author, round_, base=LIE if base else None)
    for kind in ("UPD", "AGG")
    for author in range(5)
    for round_ in range(6)
    for base in (False, True)
}
NEAR = st.sampled_from([1, 1, 1, 1, 0, 2])  # mostly for the open round


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["UPD", "AGG"]),
            st.integers(0, 4),
            NEAR,
            st.integers(0, 5).map(lambda n: n == 0),
        ),
        min_size=40,  # enough for rounds to close
        max_size=120,
    ),
    st.integers(1, 7),
)
def test_any_sequence_of_transactions_keeps_the_ledgers_invariants(
    chosen: list[tuple[str, int, int, bool]], per_block: int
) -> None:
    log = Log(FIVE)
    for start in range(0, len(chosen), per_block):
        batch = []
        for kind, author, ahead, lie in chosen[start : start + per_block]:
            round_ = min(log.state.round + ahead, 5)
            batch.append(TRANSACTIONS[kind, author, round_, lie])
        before = log.state
        responses = log.commit(*batch)
        assert_invariants(before, log.state, responses.count(OK))
        assert log.small.ledger.decode(log.small.ledger.encode(log.state)) == log.state


def assert_invariants(before: LedgerState, after: LedgerState, oks: int) -> None:
    assert before.round <= after.round <= min(before.round + 1, 4), "a block holds <= 7 here"
    assert oks or after.round == before.round
    authors = [ref.author for ref in after.current]
    assert authors == sorted(set(authors))
    assert list(after.voters) == sorted(set(after.voters))
    assert [closed.round for closed in after.closed] == list(
        range(max(1, after.round - 1), after.round + 1)
    )
    for closed in after.closed:
        assert {ref.base for ref in closed.updates} == {closed.base}
        assert len({ref.author for ref in closed.updates}) == len(closed.updates) >= 4
