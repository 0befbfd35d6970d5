"""Which process of a key holds the key's place at a peer.

Two processes with one key sign twice and make an honest member look like a liar, so each node is
connected to one process of a contact at a time. Processes are known by their sessions: random
numbers, stated in hellos. The first one holds the place as long as it answers. One that has lost
its place never gets it back: another one may have signed since. Nothing here waits; challenge.py
asks the holder.
"""

from dataclasses import dataclass
from enum import Enum, auto

SESSION_BYTES = 16
# For the holder's answer to a ping. With TLS and the hellos it fits into `handshake_s`, and a round
# trip of 600 ms fits into it with a byte lost on the way.
ANSWER_S = 2.5
# How long a sign of life counts against a rival that was heard before it, and how long a holder may
# have been without a link that a relay has cut.
LIVES_S = 10.0
# How long a member's claim counts that our place there is taken. We call it more often.
CLAIM_S = 30.0
# A member that takes new sessions all the time makes only itself forgotten.
PAST_SESSIONS_MAX = 16
# Of those who say that our key is in use.
NAMES_SHOWN = 3


class SeatVerdict(Enum):
    ADMIT = auto()
    REFUSE = auto()
    ASK = auto()  # the holder, then `settle`
    LATER = auto()  # the holder gets the time to come back, or is a new one that was not asked


@dataclass(frozen=True, slots=True)
class Rival:
    session: bytes
    heard_at: float  # first
    signs: int  # that had come then


class KeySeat:
    """One contact's place at this node."""

    def __init__(self) -> None:
        self.holder: bytes | None = None
        self._past: dict[bytes, None] = {}  # former holders, the oldest first
        self.signs = 0  # of life, of all holders
        self._lived_at = float("-inf")  # when the last one came
        self._lost_at = float("-inf")  # when its last link ended
        self._rival: Rival | None = None  # the newest
        self._refused = b""

    def judge(self, session: bytes, now: float, *, linked: bool, relayed: bool) -> SeatVerdict:
        """A process of this session says hello. `linked`: the holder has a link. `relayed`: this
        one calls through a relay, which ends the holder's connection there."""
        if self.holder is None or session == self.holder:
            return SeatVerdict.ADMIT
        if session in self._past:
            return self._refuse(session)
        if self._rival is None or self._rival.session != session:
            self._rival = Rival(session, now, self.signs)
        if self.signs > self._rival.signs and now - self._lived_at < LIVES_S:
            return self._refuse(session)
        return SeatVerdict.ASK if linked else self._successor(self._rival, now, relayed=relayed)

    def settle(
        self, session: bytes, asked: bytes | None, signs: int, now: float, *, relayed: bool
    ) -> SeatVerdict:
        """After the holder `asked` was asked; so many signs of life had come before. They prove
        nothing: a process that follows a dead one is not refused for what that one did."""
        if session == self.holder:
            return SeatVerdict.ADMIT
        if session in self._past:
            return self._refuse(session)
        if asked != self.holder:
            return SeatVerdict.LATER
        if self.signs > signs:
            return self._refuse(session)
        rival = self._rival
        if rival is None or rival.session != session:
            rival = Rival(session, now, signs)
        return self._successor(rival, now, relayed=relayed)

    def _successor(self, rival: Rival, now: float, *, relayed: bool) -> SeatVerdict:
        """The holder has no link, or does not answer. If a relay has ended its link for the rival's
        sake, it calls again."""
        is_cut = relayed and now - self._lost_at < LIVES_S
        is_new = now - rival.heard_at < ANSWER_S
        return SeatVerdict.LATER if is_cut and is_new else SeatVerdict.ADMIT

    def admit(self, session: bytes, now: float) -> None:
        """A link of this session is open from now on."""
        if self.holder is not None and session != self.holder:
            self._rival = None  # its hello may be older than the rival's: it is asked first
            self._past[self.holder] = None
            if len(self._past) > PAST_SESSIONS_MAX:
                del self._past[next(iter(self._past))]
        if session == self._refused:
            self._refused = b""
        self.holder = session
        self.lived(now)

    def lived(self, now: float) -> None:
        """The holder has answered, or said hello again."""
        self.signs += 1
        self._lived_at = now

    def lost(self, now: float) -> None:
        """The holder has no link any more."""
        self._lost_at = now

    def refused(self, now: float) -> bytes:
        """The session that our hellos tell the contact about: it has no place here, and another
        one lives or has lived since. Empty: there is none."""
        holds = self._refused in self._past or now - self._lived_at < LIVES_S
        return self._refused if holds else b""

    def _refuse(self, session: bytes) -> SeatVerdict:
        self._refused = session
        return SeatVerdict.REFUSE


class TakenClaim:
    """What one member says about our own session."""

    def __init__(self) -> None:
        self._heard_at = float("-inf")

    def heard(self, now: float) -> None:
        self._heard_at = now

    def withdraw(self) -> None:
        """It has admitted us."""
        self._heard_at = float("-inf")

    def holds(self, now: float) -> bool:
        return now - self._heard_at < CLAIM_S


def place_is_taken(claims: int, faults: int) -> bool:
    """Whether so many members' claims prove that another process has our key: f liars may claim
    it of anybody, and an honest one only after the other process has answered."""
    return claims > faults


def key_in_use(members: list[str]) -> str:
    """What a node says that stops for this."""
    are = "is" if len(members) == 1 else "are"
    more = len(members) - NAMES_SHOWN
    who = ", ".join(members[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return (
        f"this node's key is in use elsewhere: {who} {are} connected with another process that has "
        "it; two processes with one key sign twice, and this member looks like a liar: stop the "
        "other one and start this one again, or delete this folder if it is a copy"
    )
