"""What stands below the sentence about a node's health: one sentence for each thing to know."""

from collections.abc import Sequence

from msgspec import Struct

from defl.contacts import PeerRole
from defl.node.report.health_words import (
    NAMES_SHOWN,
    away,
    because,
    counts,
    listed,
    reached,
    shown_name,
)
from defl.node.report.status import NodeStatus
from defl.printable import printable

# Once may be an accident; the node tries again by itself.
FAILURES_IN_A_ROW = 2
# A member is worth a note if the rule left it out in this share of at least so many rounds.
LEFT_OUT_SHARE = 0.9
LEFT_OUT_ROUNDS = 5


class HealthNote(Struct, frozen=True):
    text: str
    # What it is about: a letter of UpdateVerdict ("x" left out by the rule, "n" no update), or ""
    mark: str = ""


class MemberRecord(Struct, frozen=True):
    """How often the rule left a member out, of the rounds with an update of it."""

    name: str
    left_out: int
    judged: int
    last: int | None = None  # the newest round without it


def notes_of(status: NodeStatus, records: Sequence[MemberRecord] | None) -> list[HealthNote]:
    return [
        *_closing_notes(status),
        *trouble_notes(status),
        *_own_notes(status),
        *left_out_notes(records_of(status) if records is None else records),
        *evidence_notes(status),
    ]


def _closing_notes(status: NodeStatus) -> list[HealthNote]:
    """What becomes of the open round while members are away."""
    absent, facts = away(status), counts(status)
    if not absent or status.role != PeerRole.MEMBER or reached(status) < facts.q:
        return []
    text = f"Nothing has to be done while no more than {facts.f} of {facts.n} are away."
    left = [status.waiting_for_s[name] for name in absent if name in status.waiting_for_s]
    if left:
        text = f"The round closes without {listed(absent)} in at most {max(left):.0f} s. {text}"
    return [HealthNote(text, "n")]


def trouble_notes(status: NodeStatus) -> list[HealthNote]:
    """Why several members are away; of a single one the headline says it."""
    absent = away(status)
    if len(absent) == 1:
        return []
    return [
        HealthNote(f"{shown_name(name)}{because(status.trouble[name])}.", "n")
        for name in absent[:NAMES_SHOWN]
        if name in status.trouble
    ]


def _own_notes(status: NodeStatus) -> list[HealthNote]:
    """What the node's own operator may want to know."""
    notes = []
    late = status.own_update_late
    if 0 < status.training_failures < FAILURES_IN_A_ROW:
        notes.append(f"Training failed{because(status.worker_error)}; it is tried again.")
    if late is not None and late.round == status.round:
        notes.append(f"This node's own update was {late.late_s:.1f} s late in round {late.round}.")
    if status.evaluation_error is not None:
        notes.append(f"The newest model is not evaluated{because(status.evaluation_error)}.")
    if status.crowded:
        notes.append(
            f"Too many connect to this node without a member's proof; {status.turned_away} "
            "connections were turned away since its start. Members still get in: see `crowded` in "
            "docs/OPERATING.md."
        )
    if status.changes:
        number = len(status.changes)
        pending = "1 change of the membership is" if number == 1 else f"{number} changes are"
        notes.append(f"{pending} pending: `defl federation show` says who has approved.")
    return [HealthNote(text) for text in notes]


def records_of(status: NodeStatus) -> list[MemberRecord]:
    """From the newest rounds, which the status itself has."""
    judged = [done for done in status.history if done.left_out is not None]
    names = sorted({name for done in judged for name in done.left_out or ()})
    return [
        MemberRecord(
            name,
            sum(name in (done.left_out or ()) for done in judged),
            sum(name not in done.missing for done in judged),
            max(done.round for done in judged if name in (done.left_out or ())),
        )
        for name in names
    ]


def left_out_notes(records: Sequence[MemberRecord]) -> list[HealthNote]:
    """Members that the rule leaves out in nearly every round."""
    always = [
        record
        for record in records
        if record.judged >= LEFT_OUT_ROUNDS and record.left_out >= LEFT_OUT_SHARE * record.judged
    ]
    notes = [_often_left_out(record) for record in always[:NAMES_SHOWN]]
    if len(always) > NAMES_SHOWN:
        notes.append(f"{len(always) - NAMES_SHOWN} more were left out in nearly every round.")
    return [HealthNote(text, "x") for text in notes]


def _often_left_out(record: MemberRecord) -> str:
    last = "" if record.last is None else f", last in round {record.last}"
    return (
        f"{shown_name(record.name)} was left out by the rule in {record.left_out} of the last "
        f"{record.judged} rounds{last}: its data differ from the rest, or its training is faulty."
    )


def evidence_notes(status: NodeStatus) -> list[HealthNote]:
    by_member: dict[str, list[str]] = {}
    for contradiction in status.evidence:
        by_member.setdefault(contradiction.member, []).append(printable(str(contradiction)))
    notes = [
        f"A signed contradiction is held against {shown_name(member)}: {', '.join(found)}. Its key "
        "runs twice, or it lies: talk to them."
        for member, found in list(by_member.items())[:NAMES_SHOWN]
    ]
    if len(by_member) > NAMES_SHOWN:
        notes.append(f"There is evidence against {len(by_member) - NAMES_SHOWN} more members.")
    return [HealthNote(text, "x") for text in notes]
