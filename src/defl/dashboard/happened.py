"""What happened lately, newest first, in words: rounds closed, nodes started, members went."""

from collections.abc import Iterator, Sequence
from heapq import nlargest
from time import time

from defl.dashboard.nodes import WatchedNode
from defl.dashboard.view import Happened
from defl.dashboard.words import names, seconds_text
from defl.node.report.round_facts import Closed, RoundFacts
from defl.node.report.status import BY_RULE

EVENTS_SHOWN = 30


def happened(nodes: Sequence[WatchedNode]) -> list[Happened]:
    starts = (start for node in nodes for start in _starts(node))
    events = [*_rounds(nodes), *starts, *_away(nodes)]
    return sorted(events, key=lambda event: event.at, reverse=True)[:EVENTS_SHOWN]


def _rounds(nodes: Sequence[WatchedNode]) -> Iterator[Happened]:
    """Each round once: by the first node that has seen it close."""
    newest = {n for node in nodes for n in nlargest(EVENTS_SHOWN, node.history.rounds)}
    for number in nlargest(EVENTS_SHOWN, newest):
        for node in nodes:
            facts = node.history.rounds.get(number)
            if facts is not None and facts.closed is not None:
                what = f"round {number} closed"
                yield Happened(facts.closed.at, node.name, what, _how(facts, facts.closed))
                break


def _how(facts: RoundFacts, closed: Closed) -> str:
    came, missing = len(closed.arrivals), closed.missing
    parts = [
        f"with all {came} updates"
        if not missing
        else f"with {came} of {came + len(missing)} updates, without {names(missing)}"
    ]
    late = [
        f"{name} by {seconds_text(member.usual_s - closed.lasted_s)}"
        for name, member in closed.late.items()
        if closed.lasted_s is not None and member.usual_s > closed.lasted_s
    ]
    if late:
        parts.append(f"late: {names(late)}")
    if facts.judged is not None:
        shares = facts.judged.members
        left_out = [name for name, share in shares.items() if share.reason == BY_RULE]
        if left_out:
            parts.append(f"left out: {names(left_out)}")
    return "; ".join(parts)


def _away(nodes: Sequence[WatchedNode]) -> Iterator[Happened]:
    """Members that are away now, as the first running node sees them."""
    witness = next((node for node in nodes if node.runs and node.status is not None), None)
    if witness is None or witness.status is None:
        return
    for name, seconds in witness.status.away_s.items():
        why = witness.status.trouble.get(name)
        if why:
            yield Happened(time() - seconds, witness.name, f"{name} is away", why)


def _starts(node: WatchedNode) -> Iterator[Happened]:
    starts = node.history.starts
    for place, start in enumerate(starts[-EVENTS_SHOWN:]):
        again = len(starts) > EVENTS_SHOWN or place > 0
        what = "started again" if again else "started"
        yield Happened(start.at, node.name, what, f"in round {start.round + 1}")
