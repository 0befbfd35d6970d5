"""A node's health in one sentence, for `defl node status` and the dashboard: the same words.

Pure functions of a status.
"""

from collections.abc import Sequence
from enum import StrEnum
from time import time

from msgspec import Struct

from defl.contacts import PeerRole
from defl.node.report.health_notes import (
    FAILURES_IN_A_ROW,
    HealthNote,
    MemberRecord,
    evidence_notes,
    notes_of,
    trouble_notes,
)
from defl.node.report.health_words import (
    away,
    because,
    clause,
    counts,
    listed,
    reached,
    shown_name,
    time_of_day,
)
from defl.node.report.phases import Phase
from defl.node.report.status import NodeStatus


class Level(StrEnum):
    GOOD = "good"
    ATTENTION = "attention"  # it goes on, and somebody may want to look
    DANGER = "danger"  # somebody must act
    IDLE = "idle"  # it does not run


class Health(Struct, frozen=True):
    level: Level
    badge: str  # two or three words: "Running, 1 away"
    sentence: str
    notes: list[HealthNote] = []


def health_of(status: NodeStatus, records: Sequence[MemberRecord] | None = None) -> Health:
    """Of a running node. `records` cover more rounds than the status does, if they are known."""
    level, badge, sentence = _headline(status)
    return Health(level, badge, sentence, notes_of(status, records))


def health_when_stopped(
    name: str,
    folder: str,
    last: NodeStatus | None = None,
    *,
    last_round: int | None = None,
    seen_at: float | None = None,
    has_started: bool = False,
    now: float | None = None,
) -> Health:
    """Of a node that does not run: its final status, and the open round and the time of day when
    it was last seen, as far as they are known. `has_started`: at least once."""
    shown = shown_name(name)
    if last is not None and last.departed:
        return Health(Level.IDLE, "Left", f"{shown} has left the federation and does not run.")
    if last is not None and last.finished:
        return Health(Level.GOOD, "Finished", finished(last))
    if last is not None and last.elsewhere is not None:
        text = (
            f"{shown} does not run: {clause(last.elsewhere)}. Stop the other one and start this "
            "one again, or delete this folder if it is a copy."
        )
        return Health(Level.DANGER, "Key in use", text)
    if last_round is None and last is not None:
        last_round = min(last.round + 1, last.rounds)
    seen = "it was started, but no round is on record" if has_started else "it has never run"
    if last_round is not None:
        at = "" if seen_at is None else f" at {time_of_day(seen_at, now or time())}"
        seen = f"last seen in round {last_round}{at}"
    start = f"Start it: `defl node start {clause(folder)}`"
    return Health(Level.IDLE, "Not running", f"{shown} does not run; {seen}. {start}")


def members_health(status: NodeStatus) -> Health:
    """About the members as this node sees them."""
    absent = away(status)
    accused = {contradiction.member for contradiction in status.evidence}
    badges = []
    if absent:
        badges.append(f"{len(absent)} away")
    if accused:
        badges.append(f"{len(accused)} with evidence")
    return Health(
        Level.ATTENTION if badges else Level.GOOD,
        ", ".join(badges) or "All connected",
        f"{_connected(status)}.",
        [*trouble_notes(status), *evidence_notes(status)],
    )


def _headline(status: NodeStatus) -> tuple[Level, str, str]:
    """What matters most comes first."""
    name, facts = shown_name(status.name), counts(status)
    if status.safety_broken is not None:
        text = (
            f"Safety broken: what {name} committed is contradicted elsewhere: more than {facts.f} "
            f"of {facts.n} lied. Stop, keep every folder, talk to all members."
        )
        return Level.DANGER, "Safety broken", text
    if status.disk_full:
        text = f"Disk full: {name} signs nothing until there is room, then goes on by itself."
        return Level.DANGER, "Disk full", text
    if status.no_descriptors:
        text = (
            f"No more files can be opened: {name} signs nothing until they can; start it with a "
            "higher ulimit -n."
        )
        return Level.DANGER, "No open files", text
    if status.role != PeerRole.MEMBER:
        return _outsider(status)
    if status.finished:
        return Level.GOOD, "Finished", finished(status)
    if status.observing is not None:
        text = (
            f"Observing: {name} follows and signs nothing until the next epoch"
            f"{because(status.observing)}."
        )
        return Level.ATTENTION, "Observing", text
    if status.training_failures >= FAILURES_IN_A_ROW:
        text = (
            f"{open_round(status)}: training failed {status.training_failures} times in a row"
            f"{because(status.worker_error)}; {_connected(status)}."
        )
        return Level.DANGER, "Training fails", text
    return _running(status)


def _running(status: NodeStatus) -> tuple[Level, str, str]:
    facts, absent = counts(status), away(status)
    if reached(status) < facts.q and status.round < status.rounds:
        lacking = f"{reached(status)} of {facts.n} connected, {facts.q} needed"
        if status.round == 0:
            return Level.ATTENTION, "Starting", f"No round has closed yet; {lacking}."
        return Level.DANGER, "Cannot close", f"{open_round(status)} cannot close: {lacking}."
    level = Level.ATTENTION if absent or status.evidence else Level.GOOD
    badge = f"Running, {len(absent)} away" if absent else "Running"
    return level, badge, f"{progress(status)}; {_connected(status)}."


def _outsider(status: NodeStatus) -> tuple[Level, str, str]:
    name = shown_name(status.name)
    if status.departed:
        return Level.IDLE, "Left", f"{name} has left the federation, and enough members know it."
    text = f"{name} is no member in this epoch; it waits {clause(status.waiting)}."
    return Level.ATTENTION, status.role.capitalize(), text


def finished(status: NodeStatus) -> str:
    proven = status.proven
    by = ""
    if proven is not None and proven.round == status.rounds:
        signers = f"{proven.signatures} of {proven.members}"
        by = f"; the model of round {proven.round} is proven by {signers}"
    return f"Finished: all {status.rounds} rounds closed{by}."


def open_round(status: NodeStatus) -> str:
    return f"Round {min(status.round + 1, status.rounds)} of {status.rounds}"


def progress(status: NodeStatus, *, of_all: bool = False) -> str:
    """What the node does in the open round. `of_all`: in words about the whole federation, for
    which it speaks."""
    if status.round >= status.rounds:
        return f"All {status.rounds} rounds closed: waiting for the members to prove the last model"
    opened = status.open_round
    if of_all and status.answers_missing:
        return f"{open_round(status)}: waiting for reports of what members have signed before"
    if opened is None or status.answers_missing:
        return f"{open_round(status)}: waiting {clause(status.waiting)}"
    doing = f"waiting for {len(opened.awaited)} of {counts(status).n} updates"
    if not opened.awaited:
        doing = "all updates are in, closing"
    if status.name in opened.awaited and opened.phases:
        match opened.phases[-1].phase:
            case Phase.PREPARE | Phase.FETCH | Phase.AGGREGATE:
                doing = f"preparing the model of round {opened.round - 1}"
            case Phase.TRAIN:
                doing = "training"
            case Phase.CERTIFY:
                doing = "sending updates" if of_all else "sending its update"
            case Phase.CLOSE:
                pass
    return f"{open_round(status)}: {doing}"


def _connected(status: NodeStatus) -> str:
    absent = away(status)
    text = f"{reached(status)} of {counts(status).n} connected"
    if not absent:
        return text
    if len(absent) > 1:
        return f"{text}; {listed(absent)} are away"
    return f"{text}; {listed(absent)} is away{because(status.trouble.get(absent[0]))}"
