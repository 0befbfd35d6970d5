"""Who waits for whom at a relay: the rules, without connections and clocks.

A *line* is one lane of one pair of agreed keys; the lower key calls, the other one parks. A line
holds one meeting at most, and so 2 (n - 1) connections of a key are served, whatever it sends. A
newer connection of either member ends the line's older ones: a member that comes again has lost
what it had. Silence is counted in ticks, so that a relay that was suspended blames nobody for it.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from defl.ids import Digest
from defl.node.net.framing import Lane
from defl.node.relay.protocol import RELAY_VERSION, Notice, Request, Signal, Verb, calls

TICK_S = 5.0
# Parked members beat every 20 s (net/beats.py); nodes have beats of their own on their links.
PARKED_TICKS_MAX = 12
SPLICED_TICKS_MAX = 18
# A parked member that does not answer GO is gone; its caller waits 10 s at most.
OFFERED_TICKS_MAX = 2
# Each has a descriptor and about 50 kB. 20 members that all only dial need 760.
CONNECTIONS_MAX = 1024

Connection = TypeVar("Connection", bound=Hashable)


@dataclass(frozen=True, slots=True)
class RelayLine:
    caller: bytes
    parker: bytes
    lane: Lane


@dataclass(slots=True)
class Meeting(Generic[Connection]):
    parked: Connection
    called: Connection | None = None
    is_spliced: bool = False  # the parked member is ready
    quiet: int = 0  # ticks without a byte

    @property
    def connections(self) -> tuple[Connection, ...]:
        return (self.parked,) if self.called is None else (self.parked, self.called)

    @property
    def ticks_max(self) -> int:
        if self.is_spliced:
            return SPLICED_TICKS_MAX
        return PARKED_TICKS_MAX if self.called is None else OFFERED_TICKS_MAX


@dataclass(slots=True)
class Decision(Generic[Connection]):
    """What the relay must do, in this order."""

    end: list[Connection] = field(default_factory=list)
    tell: list[tuple[Connection, Notice]] = field(default_factory=list)  # the last one ends it
    splice: tuple[Connection, Connection] | None = None


class Switchboard(Generic[Connection]):
    def __init__(self, origin: Digest, connections_max: int = CONNECTIONS_MAX) -> None:
        self._origin = origin
        self._connections_max = connections_max
        self._keys: Set[bytes] = frozenset()
        self._meetings: dict[RelayLine, Meeting[Connection]] = {}  # the longest parked ones first
        self._lines: dict[Connection, RelayLine] = {}

    @property
    def connections(self) -> int:
        return len(self._lines)

    @property
    def spliced(self) -> int:
        return sum(meeting.is_spliced for meeting in self._meetings.values())

    @property
    def parked(self) -> int:
        return sum(meeting.called is None for meeting in self._meetings.values())

    def agree(self, keys: Iterable[bytes]) -> Decision[Connection]:
        """From now on these keys are served, and no others."""
        self._keys = frozenset(keys)
        decision: Decision[Connection] = Decision()
        for line in list(self._meetings):
            if not {line.caller, line.parker} <= self._keys:
                decision.end += self._clear(line)
        return decision

    def request(
        self, connection: Connection, key: bytes, request: Request | None
    ) -> Decision[Connection]:
        """The first frame of a new connection of the member with this key."""
        decision: Decision[Connection] = Decision()
        if (refusal := self._refusal(key, request)) is not None or request is None:
            decision.tell.append((connection, Notice(Signal.REFUSED, refusal or "")))
            return decision
        if request.verb is Verb.PROBE:
            decision.tell.append((connection, Notice(Signal.KNOWN)))
        elif request.verb is Verb.CALL:
            self._call(connection, RelayLine(key, request.peer, request.lane), decision)
        else:
            self._park(connection, RelayLine(request.peer, key, request.lane), decision)
        return decision

    def notice(self, connection: Connection, notice: Notice | None) -> Decision[Connection]:
        """A later frame. Only parked members send any; others say nothing until GO."""
        decision: Decision[Connection] = Decision()
        line = self._lines.get(connection)
        if line is None:
            return decision
        meeting = self._meetings[line]
        signal = notice.signal if notice is not None else None
        if connection != meeting.parked or meeting.is_spliced:
            decision.end += self._clear(line)
        elif signal is Signal.BEAT:
            if meeting.called is None:  # else it crossed our GO, and READY must follow
                meeting.quiet = 0
                decision.tell.append((connection, Notice(Signal.BEAT)))
        elif signal is Signal.READY and meeting.called is not None:
            meeting.is_spliced, meeting.quiet = True, 0
            decision.tell.append((meeting.called, Notice(Signal.GO)))
            decision.splice = meeting.parked, meeting.called
        else:
            decision.end += self._clear(line)
        return decision

    def gone(self, connection: Connection) -> Decision[Connection]:
        """This connection has ended. A caller whose peer went before it was ready is told."""
        decision: Decision[Connection] = Decision()
        line = self._lines.get(connection)
        if line is None:
            return decision
        meeting = self._meetings[line]
        others = [other for other in self._clear(line) if other != connection]
        if meeting.called in others and not meeting.is_spliced:
            decision.tell += [(other, Notice(Signal.ABSENT)) for other in others]
        else:
            decision.end += others
        return decision

    def tick(self, heard: Set[Connection]) -> Decision[Connection]:
        """TICK_S later; spliced connections that brought bytes meanwhile are `heard`."""
        decision: Decision[Connection] = Decision()
        for line, meeting in list(self._meetings.items()):
            is_heard = meeting.is_spliced and not heard.isdisjoint(meeting.connections)
            meeting.quiet = 0 if is_heard else meeting.quiet + 1
            if meeting.quiet >= meeting.ticks_max:
                decision.end += self._clear(line)
        return decision

    # ------------------------------------------------------------------ requests

    def _refusal(self, key: bytes, request: Request | None) -> str | None:
        if request is None:
            return "the first frame is not a request to a relay: is it another program?"
        if request.version != RELAY_VERSION:
            return (
                f"you speak version {request.version} of the relay's protocol, this relay "
                f"{RELAY_VERSION}: install the same release"
            )
        if request.origin != self._origin:
            return "this relay serves another federation: compare federation.toml"
        if key not in self._keys:
            return "your key is no member's in the relay's federation.toml or lineage"
        if request.verb is Verb.PROBE:
            return None
        if request.peer not in self._keys:
            return "the peer's key is no member's in the relay's federation.toml or lineage"
        if request.peer == key or calls(key, request.peer) != (request.verb is Verb.CALL):
            return "of two members the one with the lower key calls, and the other one parks"
        return None

    def _park(
        self, connection: Connection, line: RelayLine, decision: Decision[Connection]
    ) -> None:
        decision.end += self._clear(line)
        if not self._make_room(decision):
            self._refuse_full(connection, decision)
            return
        self._meetings[line] = Meeting(connection)
        self._lines[connection] = line
        decision.tell.append((connection, Notice(Signal.PARKED)))

    def _call(
        self, connection: Connection, line: RelayLine, decision: Decision[Connection]
    ) -> None:
        meeting = self._meetings.get(line)
        if meeting is None or meeting.called is not None:
            decision.end += self._clear(line)
            decision.tell.append((connection, Notice(Signal.ABSENT)))
            return
        meeting.called = connection  # so that the parked one does not make room
        if not self._make_room(decision):
            meeting.called = None
            self._refuse_full(connection, decision)
            return
        meeting.quiet = 0
        self._lines[connection] = line
        decision.tell.append((meeting.parked, Notice(Signal.GO)))

    def _refuse_full(self, connection: Connection, decision: Decision[Connection]) -> None:
        text = f"this relay is full: it has {self._connections_max} connections"
        decision.tell.append((connection, Notice(Signal.REFUSED, text)))

    # ------------------------------------------------------------------ meetings

    def _clear(self, line: RelayLine) -> list[Connection]:
        meeting = self._meetings.pop(line, None)
        if meeting is None:
            return []
        for connection in meeting.connections:
            del self._lines[connection]
        return list(meeting.connections)

    def _make_room(self, decision: Decision[Connection]) -> bool:
        """Ends the longest parked connection of the key that parks the most; what is spliced is
        never ended for a newcomer."""
        if len(self._lines) < self._connections_max:
            return True
        parked = Counter(line.parker for line in self._parked_lines())
        if not parked:
            return False
        most = max(parked.values())
        decision.end += self._clear(
            next(line for line in self._parked_lines() if parked[line.parker] == most)
        )
        return True

    def _parked_lines(self) -> Iterator[RelayLine]:
        return (line for line, meeting in self._meetings.items() if meeting.called is None)
