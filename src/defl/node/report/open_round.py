"""The round that is open, for the status: what this node does in it, and whose update is in."""

from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct

from defl.ids import Round
from defl.node.report.phases import PhaseTime

if TYPE_CHECKING:
    from defl.node.node import Node
    from defl.waiting import OpenRound


class OpenRoundStatus(Struct, frozen=True):
    """Times are in seconds since the round opened; if this node started later, since its start."""

    round: int
    open_s: float
    phases: list[PhaseTime]  # of this node, the last one without an end
    arrivals: dict[str, float | None]  # members whose update is in; None: this node was away then
    awaited: list[str]  # members whose update is not in
    closes_s: float | None  # when it closes without the awaited ones at the latest; None: not known


def open_round_of(node: "Node") -> OpenRoundStatus | None:
    """None before the node's start and after the last round."""
    participant, names = node.participant, node.names
    opened = participant.client.waiting.open
    if opened is None or participant.state.round >= node.federation.rounds:
        return None
    committee = node.federation.committee
    closes_at = participant.client.waiting.vote_at
    phases = node.history.phases.open_round(
        opened.number,
        opened.opened_at,
        has_model=participant.client.model(Round(opened.number - 1)) is not None,
        has_update=participant.me in opened.delivered_at,
    )
    return OpenRoundStatus(
        round=opened.number,
        open_s=_seconds(monotonic() - opened.opened_at),
        phases=phases,
        arrivals={
            names.of(member): _arrival_s(opened, at)
            for member, at in sorted(opened.delivered_at.items())
        },
        awaited=[names.of(m) for m in committee.members if m not in opened.delivered_at],
        closes_s=None if closes_at is None else _seconds(closes_at - opened.opened_at),
    )


def _arrival_s(opened: "OpenRound", at: float) -> float | None:
    """What is in when this node starts came at a time that it does not know."""
    return None if at == opened.opened_at and not opened.whole else _seconds(at - opened.opened_at)


def _seconds(value: float) -> float:
    """Milliseconds are enough; a loop's time may be a little behind the clock."""
    return round(max(0.0, value), 3)
