"""The strip's rows from the records of one node or several, and what a viewer gets of them."""

from typing import Any

from defl.dashboard.marks import MARKS_MAX, marks_of
from defl.dashboard.strip import METRICS_SHOWN, Strip
from defl.dashboard.view import RoundRow
from defl.node.report.round_facts import (
    Closed,
    EpochStarted,
    Fact,
    FoldedFacts,
    LateMember,
    Measured,
    OwnTraining,
    Proven,
    RoundJudged,
    Started,
)
from defl.node.report.status import BY_RULE, MemberShare

MEMBERS = ["alice", "bob", "carol", "dave"]
STARTED = Started(at=1.0, round=0, epoch=0, first_round=1, members=MEMBERS)


def history(*facts: Fact) -> FoldedFacts:
    folded = FoldedFacts()
    folded.add((STARTED, *facts))
    return folded


def closed(number: int, *missing: str, late: tuple[str, ...] = ()) -> Closed:
    return Closed(
        at=100.0 + number,
        round=number,
        lasted_s=5.0,
        arrivals={name: 1.0 for name in MEMBERS if name not in missing},
        missing=list(missing),
        late={name: LateMember(1.0, 9.0) for name in late},
    )


def judged(number: int, *left_out: str, missing: tuple[str, ...] = ()) -> RoundJudged:
    return RoundJudged(
        number,
        "the mean",
        {
            name: MemberShare(0.0, 9.0, BY_RULE)
            if name in left_out
            else MemberShare(0.3, 0.1, None)
            for name in MEMBERS
            if name not in missing
        },
    )


def strip_of(*histories: FoldedFacts) -> Strip:
    strip = Strip()
    strip.take(histories, {number for known in histories for number in known.rounds})
    return strip


def cells(strip: Strip) -> dict[int, str]:
    return {number: row.cells for number, row in strip.rows.items()}


def test_what_one_node_missed_another_one_has() -> None:
    away_in_two = history(closed(1), judged(1, "dave"))
    always_there = history(closed(1), judged(1, "dave"), closed(2), judged(2))

    assert cells(strip_of(away_in_two, always_there)) == {1: "kkkx", 2: "kkkk"}


def test_a_member_is_late_if_any_node_waited_for_it() -> None:
    did_not_wait = history(closed(1, "bob"), judged(1, missing=("bob",)))
    waited = history(closed(1, "bob", late=("bob",)), judged(1, missing=("bob",)))

    assert cells(strip_of(did_not_wait, waited)) == {1: "klkk"}


def test_a_verdict_replaces_what_was_pending_elsewhere() -> None:
    judged_already = history(closed(1), judged(1, "carol"))

    assert cells(strip_of(history(closed(1)), judged_already)) == {1: "kkxk"}


def test_the_open_round_is_no_row() -> None:
    trains_for_two = history(closed(1), judged(1), OwnTraining(2, {"loss": 0.3}))

    assert list(strip_of(trains_for_two).rows) == [1]


def test_a_viewer_gets_only_what_changed_since_its_version() -> None:
    known = history(closed(1), judged(1), closed(2))
    strip = strip_of(known)
    first = strip.view()
    strip.take([known], known.add([judged(2, "dave"), Proven(1, "00", 4, 4, 3)]))

    assert first.whole
    assert [row.number for row in first.rounds] == [1, 2]
    news = strip.view(first.version)
    assert not news.whole
    assert [(row.number, row.cells, row.is_proven) for row in news.rounds] == [
        (1, "kkkk", True),
        (2, "kkkx", False),
    ]
    assert strip.view(news.version).rounds == []


def test_a_viewer_of_another_process_gets_everything() -> None:
    known = history(closed(1), judged(1))
    old = strip_of(known).view().version

    assert strip_of(known).view(old).whole
    for wrong in ("", ".", "zz.1", f"{old}9x", "1.-1"):
        assert strip_of(known).view(wrong).whole


def test_new_members_and_metrics_make_everything_new() -> None:
    known = history(closed(1), judged(1))
    strip = strip_of(known)
    before = strip.version
    joined = EpochStarted(at=9.0, epoch=1, first_round=2, members=[*MEMBERS, "erin"])
    strip.take([known], known.add([joined]))

    assert strip.view(before).whole
    assert strip.members == [*MEMBERS, "erin"]
    assert cells(strip) == {1: "kkkk-"}
    with_members = strip.version
    strip.take([known], known.add([Measured(1, {"accuracy": 0.9, "loss": 0.2}, 0.1)]))
    view = strip.view(with_members)
    assert view.whole
    assert view.metrics == ["accuracy", "loss"]
    assert view.higher_is_better == [True, False]
    assert view.rounds[0].metrics == [0.9, 0.2]


def test_counts_follow_a_row_that_changes() -> None:
    known = history(closed(1))
    strip = strip_of(known)
    assert strip.counts["dave"]["p"] == 1
    strip.take([known], known.add([judged(1, "dave")]))

    assert strip.counts["dave"] == {"p": 0, "x": 1}
    assert strip.newest_with_update("dave") == 1


def rows(*all_cells: str) -> list[RoundRow]:
    return [RoundRow(n, letters, 1.0, True, None, []) for n, letters in enumerate(all_cells, 1)]


def test_marks_say_who_joined_went_came_back_and_was_let_in_again() -> None:
    marks = marks_of(
        ["alice", "bob", "erin"],
        rows("kk-", "kkk", "knk", "kxk", "kxk", "kxk", "kkk", "k-k"),
    )

    assert marks == [
        (2, "erin joins"),
        (3, "bob gone"),
        (4, "bob back, left out"),
        (7, "bob kept again"),
        (8, "bob leaves"),
    ]


def test_a_member_that_is_waited_for_once_and_then_away_is_gone() -> None:
    assert marks_of(["alice", "bob"], rows("kk", "kl", "kn", "kk")) == [
        (3, "bob gone"),
        (4, "bob back"),
    ]


def test_many_at_once_are_one_mark_and_marks_are_bounded() -> None:
    assert marks_of([f"site-{i}" for i in range(20)], rows("k" * 20, "n" * 20)) == [
        (2, "20 members gone")
    ]
    flapping = rows(*["kk", "kn"] * 200)
    assert len(marks_of(["alice", "bob"], flapping)) == MARKS_MAX


def test_a_single_late_or_left_out_round_is_no_mark() -> None:
    assert marks_of(["alice", "bob"], rows("kk", "kl", "kk", "kx", "kk")) == []


def test_marks_of_a_restless_federation_are_found_without_reading_all_rounds() -> None:
    class Counted(list[RoundRow]):
        oldest = 10_000

        def __getitem__(self, place: Any) -> Any:
            if isinstance(place, int):
                self.oldest = min(self.oldest, place)
            return super().__getitem__(place)

    flapping = Counted(rows(*["kk", "kn"] * 5000))

    assert len(marks_of(["alice", "bob"], flapping)) == MARKS_MAX
    assert flapping.oldest >= len(flapping) - MARKS_MAX - 2


def test_the_newest_update_is_known_whatever_the_order_of_the_rounds() -> None:
    known = history(closed(3))
    strip = strip_of(known)
    strip.take([known], known.add([closed(1, "dave"), closed(2)]))

    assert strip.newest_with_update("dave") == 3


def test_metrics_that_are_named_anew_in_each_round_are_bounded() -> None:
    measured = [Measured(n, {f"accuracy in round {n}": 0.5}, 0.1) for n in range(1, 200)]
    strip = strip_of(history(*(closed(n) for n in range(1, 200)), *measured))

    assert len(strip.metrics) == METRICS_SHOWN
    assert all(len(row.metrics) == METRICS_SHOWN for row in strip.rows.values())
