"""The strip: members x rounds as letters, put together from the records of one node or several.

Consensus and aggregation are the same at every node, so any node's record of a round will do; what
one node missed while it was away, another one may have. Only lateness and metrics are each node's
own: a member is late if any node waited for it, and the metrics are those of the first node that
has some.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from secrets import token_hex

from defl.dashboard.marks import marks_of
from defl.dashboard.view import RoundRow, RoundsView
from defl.node.report.round_facts import FoldedFacts, UpdateVerdict

# Of all rounds together; an evaluation has at most 32. Code that names them anew in each round must
# not make every row longer with every round.
METRICS_SHOWN = 64
SMALLER_IS_BETTER = ("loss", "error", "perplexity", "mse", "mae", "rmse")
# A verdict of one node replaces another node's that stands before it.
ORDER = "".join(
    (
        UpdateVerdict.UNKNOWN,
        UpdateVerdict.PENDING,
        UpdateVerdict.NOT_A_MEMBER,
        UpdateVerdict.NO_UPDATE,
        UpdateVerdict.LATE,
        UpdateVerdict.KEPT,
        UpdateVerdict.LEFT_OUT,
    )
)
CAME = (UpdateVerdict.KEPT.value, UpdateVerdict.LEFT_OUT.value, UpdateVerdict.PENDING.value)


class Strip:
    """Takes in what the nodes have written, and hands on what has changed since a version."""

    def __init__(self) -> None:
        self.members: list[str] = []
        self.metrics: list[str] = []
        self.rows: dict[int, RoundRow] = {}
        self.counts: dict[str, Counter[str]] = {}  # of each member: its verdicts
        self._newest: dict[str, int] = {}  # of each member: the newest round with its update
        self._changed: dict[int, int] = {}  # round -> the number of its newest change
        self._number = 0
        self._generation = token_hex(4)  # another process, or another list of members: all anew

    @property
    def version(self) -> str:
        return f"{self._generation}.{self._number}"

    def take(self, histories: Sequence[FoldedFacts], changed: Iterable[int]) -> None:
        """Rebuild the rows of these rounds; all, if there are new members or metrics, or a history
        that was replaced by one without them."""
        rounds = set(changed)
        members, metrics = list(self.members), list(self.metrics)
        for epoch in (epoch for history in histories for epoch in history.epochs.values()):
            members += [name for name in epoch.members if name not in members]
        for name in (
            name for history in histories for r in sorted(rounds) for name in measured(history, r)
        ):
            if name not in metrics and len(metrics) < METRICS_SHOWN:
                metrics.append(name)
        gone = any(n in self.rows and not is_over(histories, n) for n in rounds)
        if gone or members != self.members or metrics != self.metrics:
            self._begin_anew(members, metrics)
            rounds = {number for history in histories for number in history.rounds}
        if rounds:
            self._number += 1
        for number in sorted(rounds):
            if is_over(histories, number):
                self._put(number, self._row(histories, number))

    def _begin_anew(self, members: list[str], metrics: list[str]) -> None:
        self.members, self.metrics = members, metrics
        self.rows, self.counts, self._newest, self._changed = {}, {}, {}, {}
        self._generation = token_hex(4)

    def _row(self, histories: Sequence[FoldedFacts], number: int) -> RoundRow:
        facts = [history.rounds[number] for history in histories if number in history.rounds]
        cells = best("".join(map(known.verdict, self.members)) for known in facts)
        closed = next((f.closed for f in facts if f.closed is not None), None)
        lasted = (f.closed.lasted_s for f in facts if f.closed is not None)
        values = next((found for history in histories if (found := measured(history, number))), {})
        return RoundRow(
            number,
            cells,
            next((seconds for seconds in lasted if seconds is not None), None),
            any(f.proven is not None for f in facts),
            None if closed is None else closed.at,
            [values.get(name) for name in self.metrics],
        )

    def _put(self, number: int, row: RoundRow) -> None:
        before = self.rows.get(number)
        if row == before:
            return
        self.rows[number] = row
        self._changed[number] = self._number
        for place, name in enumerate(self.members):
            count = self.counts.setdefault(name, Counter())
            if before is not None:
                count[before.cells[place]] -= 1
            count[row.cells[place]] += 1
            if row.cells[place] in CAME:
                self._newest[name] = max(number, self._newest.get(name, number))

    def view(self, since: str = "") -> RoundsView:
        """What has changed since a version of this process; everything, if it is another's."""
        generation, _, number = since.partition(".")
        known = int(number) if generation == self._generation and number.isdecimal() else None
        ascending = sorted(self.rows)
        news = (n for n in ascending if known is None or self._changed[n] > known)
        return RoundsView(
            version=self.version,
            whole=known is None,
            members=self.members,
            metrics=self.metrics,
            higher_is_better=[is_higher_better(name) for name in self.metrics],
            rounds=[self.rows[n] for n in news],
            marks=marks_of(self.members, [self.rows[n] for n in ascending]),
        )

    def newest_left_out(self, member: str) -> int | None:
        """The newest round in which the rule left this member out."""
        place = self.members.index(member)
        left_out = (n for n, row in self.rows.items() if row.cells[place] == UpdateVerdict.LEFT_OUT)
        return max(left_out, default=None)

    def newest_with_update(self, member: str) -> int | None:
        """The newest round that has an update of this member."""
        return self._newest.get(member)


def is_over(histories: Sequence[FoldedFacts], number: int) -> bool:
    """Of the open round, too, something may be on record: this node's own training."""
    facts = (history.rounds[number] for history in histories if number in history.rounds)
    return any(known.closed is not None or known.judged is not None for known in facts)


def best(cells: Iterable[str]) -> str:
    """One string of letters from those of several nodes, place by place."""
    columns = zip(*cells, strict=True)
    return "".join(
        column[0] if len(set(column)) == 1 else max(column, key=ORDER.index) for column in columns
    )


def measured(history: FoldedFacts, number: int) -> dict[str, float | None]:
    facts = history.rounds.get(number)
    return {} if facts is None or facts.measured is None else facts.measured.metrics


def is_higher_better(metric: str) -> bool:
    return not any(word in metric.lower() for word in SMALLER_IS_BETTER)
