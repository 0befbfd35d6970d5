"""The health of all nodes whose folders are on one machine, in one sentence: for `defl run`."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from defl.node.report.health import Health, Level, health_of, open_round, progress
from defl.node.report.health_notes import (
    HealthNote,
    MemberRecord,
    evidence_notes,
    left_out_notes,
    records_of,
)
from defl.node.report.health_words import NAMES_SHOWN, away, clause, counts, listed, shown_name
from defl.node.report.status import NodeStatus


class LocalNode(Struct, frozen=True):
    name: str
    folder: str
    status: NodeStatus | None  # None: it does not run
    models: dict[int, str] = {}  # digests of its newest models, by round
    finished: bool = False  # it does not run because all rounds are closed


def health_of_all(
    nodes: Sequence[LocalNode], records: Sequence[MemberRecord] | None = None
) -> Health:
    """`records`: how often the rule left members out, if more is known than the statuses say."""
    running = {node.name: node.status for node in nodes if node.status is not None}
    stopped = [node for node in nodes if node.status is None and not node.finished]
    models, differ = _models(nodes)
    front = _front(list(running.values()))
    if front is None:
        level, badge, sentence = _none_runs(nodes, stopped)
    else:
        level, badge, sentence = _some_run(len(nodes), front, running, stopped)
    if differ:
        level, badge = Level.DANGER, "Models differ"
    notes = _stopped_notes(stopped) if running else []
    for name, status in running.items():
        health = health_of(status)
        if health.badge == "Observing" or health.level is Level.DANGER:
            notes.append(HealthNote(f"{shown_name(name)}: {health.sentence}"))
            level, badge = max(level, health.level, key=_SEVERITY.index), health.badge
    if records is None:
        records = [] if front is None else records_of(front)
    notes += left_out_notes(records)
    if front is not None:
        notes += evidence_notes(front)
    return Health(level, badge, f"{sentence}; {models}." if models else f"{sentence}.", notes)


_SEVERITY = (Level.IDLE, Level.GOOD, Level.ATTENTION, Level.DANGER)


def _front(running: Sequence[NodeStatus]) -> NodeStatus | None:
    """The node that knows most of the newest round."""
    newest = max((status.round for status in running), default=0)
    return min(
        (status for status in running if status.round == newest),
        key=lambda s: 0 if s.open_round is None else len(s.open_round.awaited),
        default=None,
    )


def _some_run(
    nodes: int,
    front: NodeStatus,
    running: Mapping[str, NodeStatus],
    stopped: Sequence[LocalNode],
) -> tuple[Level, str, str]:
    facts = counts(front)
    run = f"{len(running)} of {nodes} run"
    apart = [name for name, status in running.items() if set(away(status)) & running.keys()]
    badge = f"All {nodes} run" if len(running) == nodes else run
    if stopped and nodes - len(stopped) < facts.q <= nodes:
        sentence = f"{open_round(front)} cannot close: {run}, {facts.q} needed"
        return Level.DANGER, "Cannot close", sentence
    if stopped:
        names = listed([node.name for node in stopped])
        run = f"{run}; {names} {'does' if len(stopped) == 1 else 'do'} not"
    elif apart:
        run = f"{run}; {listed(apart)} {'lacks' if len(apart) == 1 else 'lack'} connections"
    else:
        run = f"{run} and are connected"
    level = Level.ATTENTION if stopped or apart or front.evidence else Level.GOOD
    return level, badge, f"{progress(front, of_all=True)}; {run}"


def _none_runs(nodes: Sequence[LocalNode], stopped: Sequence[LocalNode]) -> tuple[Level, str, str]:
    rounds = max((round_ for node in nodes for round_ in node.models), default=0)
    if not stopped:
        return Level.GOOD, "Finished", f"Finished: all {rounds} rounds closed"
    seen = f"; last seen with the model of round {rounds}" if rounds else ""
    return Level.IDLE, "Not running", f"None of the {len(nodes)} nodes runs{seen}"


def _stopped_notes(stopped: Sequence[LocalNode]) -> list[HealthNote]:
    return [
        HealthNote(
            f"{shown_name(node.name)} does not run. Start it: `defl node start "
            f"{clause(node.folder)}`"
        )
        for node in stopped[:NAMES_SHOWN]
    ]


def _models(nodes: Sequence[LocalNode]) -> tuple[str, bool]:
    """The newest model that most nodes have, in words; True if nodes differ about any round."""
    text = ""
    for round_ in sorted({round_ for node in nodes for round_ in node.models}, reverse=True):
        having = [node for node in nodes if round_ in node.models]
        if len({node.models[round_] for node in having}) > 1:
            return f"the models of round {round_} differ", True
        if not text and len(having) > len(nodes) / 2:
            where = f"all {len(nodes)}" if len(having) == len(nodes) else f"{len(having)} of them"
            text = f"the model of round {round_} is the same at {where}"
    return text, False
