"""What became of each member's update, from the facts that a node wrote down."""

import pytest

from defl.node.report.round_facts import (
    Closed,
    EpochStarted,
    Fact,
    FoldedFacts,
    LateMember,
    Measured,
    Proven,
    RoundJudged,
    RoundReady,
    Started,
    UpdateVerdict,
)
from defl.node.report.status import BY_RULE, MemberShare

STARTED = Started(at=1.0, round=0, epoch=0, first_round=1, members=["a", "b", "c", "d"])


def closed(round_: int, *, missing: tuple[str, ...] = (), late: tuple[str, ...] = ()) -> Closed:
    return Closed(
        at=100.0 + round_,
        round=round_,
        lasted_s=9.0,
        arrivals={name: 3.0 for name in "abcd" if name not in missing},
        missing=list(missing),
        late={name: LateMember(waited_s=2.0, usual_s=20.0) for name in late},
    )


def judged(round_: int, *, left_out: str = "", missing: str = "") -> RoundJudged:
    kept = MemberShare(0.5, 0.1, None)
    shares = {
        name: MemberShare(0.0, 9.0, BY_RULE)
        if name in left_out
        else MemberShare()
        if name in missing
        else kept
        for name in "abcd"
    }
    return RoundJudged(round_, "the mean", shares)


def folded(*facts: Fact) -> FoldedFacts:
    together = FoldedFacts()
    together.add(facts)
    return together


def letters(facts: FoldedFacts, round_: int, members: str = "abcd") -> str:
    return "".join(facts.rounds[round_].verdict(name) for name in members)


def test_a_judged_round_tells_who_counts_and_why_others_do_not() -> None:
    facts = folded(
        STARTED, closed(1, missing=("c", "d"), late=("d",)), judged(1, left_out="b", missing="cd")
    )

    assert letters(facts, 1) == "kxnl"


def test_a_closed_round_that_is_not_judged_yet_knows_only_who_is_in() -> None:
    facts = folded(STARTED, closed(1, missing=("c", "d"), late=("d",)))

    assert letters(facts, 1) == "ppnl"


def test_a_judged_round_of_which_the_close_is_not_on_record() -> None:
    facts = folded(STARTED, judged(1, left_out="b", missing="d"))

    assert letters(facts, 1) == "kxkn"


def test_who_is_not_a_member_in_the_round_s_epoch_is_not_missing() -> None:
    grown = EpochStarted(at=5.0, epoch=1, first_round=3, members=["a", "b", "c", "d", "e"])
    facts = folded(STARTED, closed(2), grown, closed(3))

    assert facts.rounds[2].verdict("e") is UpdateVerdict.NOT_A_MEMBER
    assert facts.rounds[3].verdict("e") is UpdateVerdict.UNKNOWN


def test_a_round_without_close_and_judgement_is_unknown() -> None:
    """The node was away and learned only that the round is proven."""
    facts = folded(STARTED, Proven(1, "ab", 4, 4, 3))

    assert letters(facts, 1, "abcde") == "????-"


def test_members_are_unknown_before_the_first_epoch_on_record() -> None:
    """A node that joined in a later epoch."""
    facts = folded(Started(1.0, 7, 2, 8, ["a"]), RoundReady(7, "ab"))

    assert facts.rounds[7].members is None
    assert facts.rounds[7].verdict("a") is UpdateVerdict.UNKNOWN


def test_an_epoch_told_late_counts_for_the_rounds_that_are_known_already() -> None:
    together = folded(STARTED, closed(3))

    changed = together.add([EpochStarted(5.0, 1, 3, ["a", "b", "c"])])

    assert changed == {3}
    assert together.rounds[3].members == frozenset("abc")


def test_the_later_line_counts() -> None:
    facts = folded(STARTED, closed(1), judged(1, left_out="a"), judged(1, left_out="b"))

    assert letters(facts, 1) == "kxkk"


def test_restarts_are_counted_and_change_no_round() -> None:
    together = folded(STARTED, closed(1))

    changed = together.add([Started(at=50.0, round=1, epoch=0, first_round=1, members=["a"])])

    assert not changed
    assert [start.at for start in together.starts] == [1.0, 50.0]
    assert together.rounds[1].members == frozenset("abcd")


@pytest.mark.parametrize("order", [1, -1])
def test_facts_of_one_round_come_together_in_any_order(order: int) -> None:
    ready, measured = RoundReady(1, "ab"), Measured(1, {"accuracy": 0.5}, 0.1)
    facts: list[Fact] = [ready, measured]

    together = FoldedFacts()
    changed = together.add(facts[::order])

    assert changed == {1}
    assert together.rounds[1].ready == ready
    assert together.rounds[1].measured == measured
