"""Results of `defl.simulate` and `defl.run`: frozen values that print well.

Nothing here runs or measures anything. Member names, metric names and a rule's reasons come from
users and peers: `__str__` and `_repr_html_` escape all of them. The file is long because the values
contain each other, and each has its text and its HTML beside its fields.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from html import escape
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from defl.committee import faults_of
from defl.errors import UserError
from defl.printable import printable, printable_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

Metrics = Mapping[str, float]
ByMember = Mapping[str, Metrics]

# Shown first where clients report several metrics; the others follow by name.
ACCURACY = "accuracy"
FIRST_METRICS = (ACCURACY, "loss", "auc", "macro_recall")
# Metrics of a training run that ready-made clients report, and that notes refer to.
STEPS, CLASSES = "steps", "classes"
# Members whose steps differ by more than this factor send updates of different length.
STEPS_FACTOR_MAX = 2.0
# Wider tables do not fit a terminal; `series` and `as_json` have all metrics.
METRICS_SHOWN_MAX = 3
TRAINING_METRICS_SHOWN_MAX = 2
# A member's name has at most 64 characters, and a rule's reason is a sentence or two.
OMISSIONS_SHOWN_MAX = 4
# An exception may hold a whole array; the log that is named beside it has the rest.
ERROR_SHOWN_MAX = 300  # characters


class OmissionReason(StrEnum):
    """Why a member's update is not part of a round's model."""

    BY_RULE = "left out by the rule"  # the update arrived; the aggregation rule gave it no weight
    LATE = "late"  # the round waited for the member and closed before its update arrived
    NO_UPDATE = "no update"  # there was none to wait for: away, silent, or its training failed


@dataclass(frozen=True, slots=True)
class Omission:
    """A member that one round's model goes without."""

    member: str
    reason: OmissionReason
    detail: str = ""  # more than the reason says: a score, how late, an error

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.member} ({self.reason}{detail})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One closed round."""

    number: int  # the first round is 1
    digest: str | None = None  # of the round's model, in hex; None: not known
    metrics: ByMember = field(default_factory=dict)  # of the round's model, by `evaluate`
    training: ByMember = field(default_factory=dict)  # of each member's own update, by `train`
    omissions: tuple[Omission, ...] = ()
    seconds: float | None = None  # since the round before closed; None: not known

    @property
    def metric_names(self) -> tuple[str, ...]:
        """All metrics that `evaluate` reported: accuracy and loss first, then by name."""
        return _names([self.metrics])

    def mean(self, metric: str) -> float | None:
        """The mean over the members that report this metric; None if there are none."""
        return _mean(self.metrics, metric)

    def training_mean(self, metric: str) -> float | None:
        return _mean(self.training, metric)


@dataclass(frozen=True, slots=True)
class Attendance:
    """In how many of the closed rounds a member's update was used, and why not in the others."""

    member: str
    taken_part: int
    left_out: int  # by the rule
    late: int
    missing: int


@dataclass(frozen=True, slots=True)
class MemberTraffic:
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What happened in a federation, round by round."""

    members: tuple[str, ...]
    rounds: tuple[RoundRecord, ...]  # those that closed
    rounds_planned: int
    initial_metrics: ByMember = field(default_factory=dict)  # before the first round
    byzantine: Mapping[str, str] = field(default_factory=dict)  # members that attack, and how
    digests: Mapping[str, str | None]  # of each member's newest model, in hex
    traffic: Mapping[str, MemberTraffic]
    # Wall-clock time of the whole run; equal runs may differ in it.
    seconds: float = field(compare=False)

    _ROUND_SECONDS: ClassVar[str] = "seconds"  # the head of a column

    @property
    def complete(self) -> bool:
        return len(self.rounds) == self.rounds_planned

    @property
    def digest(self) -> str | None:
        """The digest of the honest members' common model; None if they have none or differ."""
        held = {self.digests.get(name) for name in self.members if name not in self.byzantine}
        return held.pop() if len(held) == 1 else None

    @property
    def agreed(self) -> bool:
        """Do all honest members hold the same model?"""
        return self.digest is not None

    @property
    def attendance(self) -> tuple[Attendance, ...]:
        return tuple(self._attendance_of(name) for name in self.members)

    def _attendance_of(self, member: str) -> Attendance:
        reasons = [o.reason for r in self.rounds for o in r.omissions if o.member == member]
        return Attendance(
            member,
            taken_part=len(self.rounds) - len(reasons),
            left_out=reasons.count(OmissionReason.BY_RULE),
            late=reasons.count(OmissionReason.LATE),
            missing=reasons.count(OmissionReason.NO_UPDATE),
        )

    @property
    def metric_names(self) -> tuple[str, ...]:
        """All metrics that `evaluate` reported: accuracy and loss first, then by name."""
        return _names([self.initial_metrics, *(record.metrics for record in self.rounds)])

    def series(self, metric: str, member: str | None = None) -> dict[int, float]:
        """A metric of each round's model: one member's, or the mean over all that report it.

        Round 0 is the initial model, if it was evaluated.
        """
        if metric not in self.metric_names:
            known = ", ".join(self.metric_names) or "none: no model was evaluated"
            raise UserError(f"no metric is named {metric!r}; there are: {known}")
        if member is not None and member not in self.members:
            raise UserError(f"no member is named {member!r}; there are: {', '.join(self.members)}")
        evaluated = {0: self.initial_metrics, **{r.number: r.metrics for r in self.rounds}}
        values = {
            number: _mean(by_member, metric)
            if member is None
            else by_member.get(member, {}).get(metric)
            for number, by_member in evaluated.items()
        }
        return {number: value for number, value in values.items() if value is not None}

    # --- For people ------------------------------------------------------------------------

    def __str__(self) -> str:
        parts = [self._headline(), _text_table(*self._rounds_table()), self._verdict()]
        parts += [_text_table(*self._members_table()), *self._notes()]
        return printable_lines("\n\n".join(parts))

    def _repr_html_(self) -> str:
        parts = [
            f"<p>{escape(self._headline())}</p>",
            _html_table(*self._rounds_table()),
            f"<p>{escape(self._verdict())}</p>",
            _html_table(*self._members_table()),
            *(f"<pre>{escape(note)}</pre>" for note in self._notes()),
        ]
        return "\n".join(parts)

    def _headline(self) -> str:
        attacks = ", ".join(f"{name} ({how})" for name, how in self.byzantine.items())
        rounds = f"{len(self.rounds)} of {self.rounds_planned} rounds closed"
        byzantine = f"; Byzantine: {attacks}" if attacks else ""
        return f"{len(self.members)} members, {rounds} in {self.seconds:.1f} s{byzantine}"

    def _verdict(self) -> str:
        whose = "all honest members" if self.byzantine else "all members"
        if self.agreed:
            return f"{whose} hold the same model: {self.digest}"
        if not self.rounds:
            return "no round closed, so there is no model"
        held = {name: digest for name, digest in self.digests.items() if name not in self.byzantine}
        without = [name for name, digest in held.items() if digest is None]
        if len({digest for digest in held.values() if digest}) <= 1 and without:
            return f"the model of {', '.join(without)} is not known"
        return "the members hold different models: some are behind, or the run was cut short"

    def _notes(self) -> list[str]:
        """Notes below the tables: why members had no update; each kind of result adds its own."""
        details: dict[str, str] = {}
        for record in self.rounds:
            for omission in record.omissions:
                if omission.reason is OmissionReason.NO_UPDATE and omission.detail:
                    details.setdefault(omission.member, omission.detail)
        notes = [f"{member} had no update: {detail}" for member, detail in details.items()]
        return [*notes, *self._one_class_notes(), *self._step_notes()]

    def _one_class_notes(self) -> list[str]:
        """Name the honest members that have labels of one class only."""
        single = [name for name, classes in self._training_means(CLASSES).items() if classes == 1]
        faults = faults_of(len(self.members))
        if not single:
            return []
        if len(single) <= faults:
            return [f"{', '.join(single)} trained on labels of one class: little to teach others"]
        note = (
            f"{', '.join(single)} trained on labels of one class, more than f = {faults} members: "
            "the shared model may fail; give them examples of other classes"
        )
        return [note]

    def _step_notes(self) -> list[str]:
        """Say if unequal work may be why an honest member was left out."""
        steps = {name: mean for name, mean in self._training_means(STEPS).items() if mean > 0}
        honest = [one for one in self.attendance if one.member not in self.byzantine]
        worst = max(honest, key=lambda one: one.left_out, default=None)
        if not steps or worst is None or not worst.left_out:
            return []
        least, most = min(steps, key=steps.__getitem__), max(steps, key=steps.__getitem__)
        if steps[most] <= STEPS_FACTOR_MAX * steps[least]:
            return []
        note = (
            f"{most} trained {steps[most]:.0f} steps per round and {least} {steps[least]:.0f}, and "
            f"the rule left {worst.member} out in {worst.left_out} of {len(self.rounds)} rounds: "
            "give all members the same number of steps"
        )
        return [note]

    def _training_means(self, metric: str) -> dict[str, float]:
        """Return each honest member's mean of a training metric over the rounds."""
        values: dict[str, list[float]] = {}
        for record in self.rounds:
            for member, metrics in record.training.items():
                if metric in metrics and member not in self.byzantine:
                    values.setdefault(member, []).append(metrics[metric])
        return {member: sum(each) / len(each) for member, each in values.items()}

    def _rounds_table(self) -> tuple[list[str], list[list[str]]]:
        shown = self.metric_names[:METRICS_SHOWN_MAX]
        trained = _names(record.training for record in self.rounds)
        trained = trained[:TRAINING_METRICS_SHOWN_MAX]
        head = ["round", *shown, *(f"{name} (training)" for name in trained)]
        head += [self._ROUND_SECONDS, "without"]
        rows = []
        if self.initial_metrics:
            values = [_number(_mean(self.initial_metrics, name)) for name in shown]
            rows.append(["0", *values, *("" for _ in trained), "", ""])
        for record in self.rounds:
            values = [_number(record.mean(name)) for name in shown]
            values += [_number(record.training_mean(name)) for name in trained]
            seconds = "" if record.seconds is None else f"{record.seconds:.1f}"
            rows.append([str(record.number), *values, seconds, _listed(record.omissions)])
        return head, rows

    def _members_table(self) -> tuple[list[str], list[list[str]]]:
        """Attendance, traffic, and each member's own figures of the last model that differ."""
        evaluated = next((r.metrics for r in reversed(self.rounds) if r.metrics), {})
        shown = [name for name in _names([evaluated]) if _differs(evaluated, name)]
        shown = shown[:METRICS_SHOWN_MAX]
        head = ["member", "took part", "left out", "late", "missing", "sent", "received", *shown]
        rows = []
        for one in self.attendance:
            traffic = self.traffic.get(one.member)
            sent = "" if traffic is None else _bytes(traffic.sent_bytes)
            received = "" if traffic is None else _bytes(traffic.received_bytes)
            counts = map(str, (one.taken_part, one.left_out, one.late, one.missing))
            own = evaluated.get(one.member, {})
            figures = (_number(own.get(name)) for name in shown)
            rows.append([one.member, *counts, sent, received, *figures])
        return head, rows

    def plot(self, metric: str | None = None, path: str | Path | None = None) -> "Figure":
        """A metric after each round, and below it which members each round went without.

        The default metric is the accuracy, or the first by name; `path` also writes the picture
        to a file (.png, .svg or .pdf).
        """
        from defl.plotting import draw  # noqa: PLC0415 - matplotlib is optional and slow to load

        if metric is None:
            if not self.metric_names:
                raise UserError("no model was evaluated, so there is no metric to plot")
            metric = self.metric_names[0]
        return draw(self, metric, path)

    def as_json(self) -> dict[str, Any]:
        """Everything but arrays, for `json.dumps`; a number that is not finite is None."""
        derived = {
            "complete": self.complete,
            "agreed": self.agreed,
            "attendance": _plain(self.attendance),
        }
        names = (f.name for f in fields(self) if f.metadata.get("json", True))
        return {**{name: _plain(getattr(self, name)) for name in names}, **derived}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation(History):
    """A History on the virtual clock; everything but `seconds` follows from clients and seed.

    A round's seconds are virtual ones.
    """

    _ROUND_SECONDS: ClassVar[str] = "virtual seconds"

    seed: int
    # The final model, arrays by name. Results are compared by their digests instead.
    weights: "Mapping[str, NDArray[Any]]" = field(
        repr=False, compare=False, metadata={"json": False}
    )
    checks: Mapping[str, bool]  # the simulator's verdicts on the whole run, by name
    violations: tuple[str, ...] = ()  # the details of each failed check
    virtual_s: float = 0.0
    stopped: str = ""  # why the run ended before its last round

    @property
    def ok(self) -> bool:
        return all(self.checks.values())

    def _notes(self) -> list[str]:
        notes = History._notes(self)
        if self.stopped:
            notes.append(f"stopped: {self.stopped}")
        failed = [name for name, holds in self.checks.items() if not holds]
        if not failed:
            return notes
        return [
            *notes,
            "\n".join(["CHECKS THAT DO NOT HOLD: " + ", ".join(failed), *self.violations]),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(History):
    """A History of real processes, whose folders still exist."""

    folder: Path  # holds one folder per member, each with model, certificate and log
    interrupted: bool = False
    commit_ms: ByMember = field(default_factory=dict)  # "p50", "p90", ... by member
    disk_bytes: Mapping[str, int] = field(default_factory=dict)  # used by each member's node
    # The newest failure of each member's training code, with its traceback.
    worker_errors: Mapping[str, str] = field(default_factory=dict)

    def folder_of(self, member: str) -> Path:
        """Where `defl.load_model`, `defl.verify` and `defl export` find the member's files."""
        if member not in self.members:
            raise UserError(f"no member is named {member!r}; there are: {', '.join(self.members)}")
        return self.folder / member

    def _verdict(self) -> str:
        if self.interrupted:
            return "interrupted before the last round closed; members may be a round apart"
        return History._verdict(self)  # a dataclass with slots breaks the bare `super()`

    def _notes(self) -> list[str]:
        notes = History._notes(self)
        for member, error in self.worker_errors.items():
            last = error.strip().rpartition("\n")[2][:ERROR_SHOWN_MAX]
            log = self.folder / member / "node.log"
            notes.append(f"{member}'s client failed at least once, last: {last}\n  see {log}")
        return notes


# --- Tables ----------------------------------------------------------------------------------


def _names(rounds: Iterable[ByMember]) -> tuple[str, ...]:
    names = {name for by_member in rounds for metrics in by_member.values() for name in metrics}
    first = [name for name in FIRST_METRICS if name in names]
    return (*first, *sorted(names.difference(first)))


def _mean(by_member: ByMember, metric: str) -> float | None:
    values = [metrics[metric] for metrics in by_member.values() if metric in metrics]
    return sum(values) / len(values) if values else None


def _differs(by_member: ByMember, metric: str) -> bool:
    """Whether members report different values; equal ones are in the table of rounds already."""
    values = {metrics[metric] for metrics in by_member.values() if metric in metrics}
    return len(values) > 1


def _listed(omissions: tuple[Omission, ...]) -> str:
    shown = ", ".join(f"{o.member} ({o.reason})" for o in omissions[:OMISSIONS_SHOWN_MAX])
    more = len(omissions) - OMISSIONS_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value.is_integer() and 10 <= abs(value) < 1e9:  # a count rather than a measurement
        return f"{value:.0f}"
    return f"{value:.4f}" if not isfinite(value) or 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"


def _bytes(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text[:1] == "-" or text in ("", "nan", "inf")


def _text_table(head: list[str], rows: list[list[str]]) -> str:
    """Columns of numbers end flush right; names and the last column begin flush left."""
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(head))]
    right[-1] = right[-1] and any(row[-1] for row in rows)
    head = [printable(cell) for cell in head]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = (
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(row, widths, right, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _html_table(head: list[str], rows: list[list[str]]) -> str:
    def line(tag: str, cells: list[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "\n".join(line("td", row) for row in rows)
    return f"<table>\n<thead>{line('th', head)}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _plain(value: object) -> Any:
    """Dataclasses, mappings and tuples as JSON has them."""
    match value:
        case float():
            return value if isfinite(value) else None
        case StrEnum():
            return value.name.lower()
        case Path():
            return str(value)
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case tuple() | list():
            return [_plain(item) for item in value]
        case Omission() | RoundRecord() | Attendance() | MemberTraffic():
            return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        case _:
            return value
