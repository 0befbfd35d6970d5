"""What to write above the curve: where a member joined, went, came back, or was let in again."""

from collections import deque
from collections.abc import Sequence

from defl.dashboard.view import RoundRow
from defl.node.report.round_facts import UpdateVerdict

# More would cover the curve; the strip below shows every round anyway.
MARKS_MAX = 60
# Names in one mark; with more members it says how many.
NAMES_MAX = 2
# A member that was left out this many rounds in a row and is kept again is worth a mark.
LEFT_OUT_FOR = 3

PRESENT = (UpdateVerdict.KEPT.value, UpdateVerdict.LEFT_OUT.value)
KEPT, LEFT_OUT = UpdateVerdict.KEPT.value, UpdateVerdict.LEFT_OUT.value
LATE, NO_UPDATE = UpdateVerdict.LATE.value, UpdateVerdict.NO_UPDATE.value
NOT_A_MEMBER = UpdateVerdict.NOT_A_MEMBER.value


def marks_of(members: Sequence[str], rows: Sequence[RoundRow]) -> list[tuple[int, str]]:
    """Ascending by round; the newest MARKS_MAX."""
    marks: deque[tuple[int, str]] = deque()
    for place in range(len(rows) - 1, 0, -1):  # from the newest: the old ones are rarely needed
        marks.extendleft(reversed(_marks_at(members, rows, place)))
        if len(marks) >= MARKS_MAX:
            break
    return list(marks)[-MARKS_MAX:]


def _marks_at(
    members: Sequence[str], rows: Sequence[RoundRow], place: int
) -> list[tuple[int, str]]:
    cells, before = rows[place].cells, rows[place - 1].cells
    if cells == before:
        return []  # most rounds of a quiet federation
    earlier = rows[max(0, place - LEFT_OUT_FOR) : place]
    happened: dict[str, list[str]] = {}
    for member, (now, last) in enumerate(zip(cells, before, strict=True)):
        if now == last:
            continue
        left_out_for = sum(row.cells[member] == LEFT_OUT for row in earlier)
        if what := _what(now, last, left_out_for):
            happened.setdefault(what, []).append(members[member])
    return [(rows[place].number, f"{_names(who)} {what}") for what, who in happened.items()]


def _what(now: str, last: str, left_out_for: int) -> str:
    """`left_out_for`: of the last LEFT_OUT_FOR rounds, how many."""
    if last == NOT_A_MEMBER:
        return "joins"
    if now == NOT_A_MEMBER:
        return "leaves"
    if now == NO_UPDATE and last in (*PRESENT, LATE):
        return "gone"
    if now in PRESENT and last == NO_UPDATE:
        return "back, left out" if now == LEFT_OUT else "back"
    if now == KEPT and left_out_for == LEFT_OUT_FOR:
        return "kept again"
    return ""


def _names(who: Sequence[str]) -> str:
    return " and ".join(who) if len(who) <= NAMES_MAX else f"{len(who)} members"
