"""The heartbeat of one link: when a beat is due, what an answer tells, when silence means death.

A beat is a header without a frame: the top bit, a bit for a pong, and a number. Beats keep
firewalls and proxies from forgetting an idle connection, and measure its round trip. Silence is
counted in ticks, not in seconds: a process that was suspended finds its links alive.
"""

from dataclasses import dataclass

# Firewalls, NAT and proxies forget connections that were idle for a minute or more.
BEAT_S = 20.0
# So many ticks without a byte: the peer is gone. One or two lost beats are a short cut.
SILENT_TICKS_MAX = 3
SILENT = f"silent for {SILENT_TICKS_MAX * BEAT_S:.0f} s"
# So many ticks without an answer on a link of short frames: what lies between, such as a relay,
# lets through just enough to look alive.
UNANSWERED_TICKS_MAX = 4
UNANSWERED = f"no answer to a ping for {UNANSWERED_TICKS_MAX * BEAT_S:.0f} s"

BEAT_BIT = 1 << 31
PONG_BIT = 1 << 30
NUMBERS = PONG_BIT


@dataclass(frozen=True, slots=True)
class Beat:
    number: int
    is_pong: bool = False


def header_of(beat: Beat) -> int:
    return BEAT_BIT | (PONG_BIT if beat.is_pong else 0) | beat.number


def beat_of(header: int) -> Beat | None:
    """None: the header of a frame."""
    if not header & BEAT_BIT:
        return None
    return Beat(header % NUMBERS, is_pong=bool(header & PONG_BIT))


class Heart:
    """The beats of an open link. It begins with a ping, so that a round trip is known soon."""

    def __init__(self, *, short_frames: bool = False) -> None:
        """`short_frames`: no frame is so long that an answer may wait for its end."""
        self._short_frames = short_frames
        self.round_trip_s: float | None = None  # the newest
        # The smaller one of the newest two: a ping that waited through a cut says nothing.
        self.usual_round_trip_s: float | None = None
        self.heard = True  # a byte since the last tick; set by the link
        self._silent_ticks = 0
        self._unanswered_ticks = 0
        self._number = 0  # of the newest ping
        self._asked_at: float | None = None  # when that one was first written, until its pong
        self._answered = 0  # the newest ping that has been answered
        self._ping_due = True
        # The newest ping's alone: a peer that sends many and reads nothing costs no more.
        self._pong_due: Beat | None = None

    def tick(self, *, reading: bool) -> str | None:
        """To be called every `BEAT_S`; returns why the peer counts as gone. While we do not read,
        its bytes wait for us, and the silence is ours."""
        self._silent_ticks = 0 if self.heard or not reading else self._silent_ticks + 1
        waits = self._asked_at is not None or self._ping_due
        self._unanswered_ticks = self._unanswered_ticks + 1 if waits and reading else 0
        self.heard = False
        self._ping_due = True
        if self._silent_ticks == SILENT_TICKS_MAX:
            return SILENT
        if self._short_frames and self._unanswered_ticks == UNANSWERED_TICKS_MAX:
            return UNANSWERED
        return None

    def take(self, beat: Beat, now: float) -> bool:
        """Does this beat complete a round trip?"""
        if not beat.is_pong:
            self._pong_due = Beat(beat.number, is_pong=True)
            return False
        if self._is_newer_answer(beat.number):
            self._answered = beat.number
            self._unanswered_ticks = 0
        if self._asked_at is not None and beat.number == self._number:
            newest_s, before_s = now - self._asked_at, self.round_trip_s
            self.round_trip_s = newest_s
            self.usual_round_trip_s = newest_s if before_s is None else min(newest_s, before_s)
            self._asked_at = None
            return True
        return False

    def challenge(self) -> int:
        """Makes a ping due that was never sent before; returns its number."""
        self._asked_at = None
        self._ping_due = True
        return (self._number + 1) % NUMBERS

    def has_answered(self, number: int) -> bool:
        """Whether an answer to this ping or to a later one has come."""
        return _at_least(self._answered, number)

    def _is_newer_answer(self, number: int) -> bool:
        return number != self._answered and (
            _at_least(number, self._answered) and _at_least(self._number, number)
        )

    @property
    def is_due(self) -> bool:
        return self._ping_due or self._pong_due is not None

    def beats(self, now: float) -> list[Beat]:
        """What is due, to be written now. A ping that is not answered yet is repeated, and its time
        goes on: a round trip may take longer than a tick."""
        due = [] if self._pong_due is None else [self._pong_due]
        self._pong_due = None
        if self._ping_due:
            self._ping_due = False
            if self._asked_at is None:
                self._number = (self._number + 1) % NUMBERS
                self._asked_at = now
            due.append(Beat(self._number))
        return due


def _at_least(number: int, other: int) -> bool:
    """Numbers begin again at 0 after a very long time."""
    return (number - other) % NUMBERS < NUMBERS // 2
