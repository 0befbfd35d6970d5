"""Which members this node waits for, and how long, before its AGG lets a round close without them.

A member is expected if the last closed round has its update, or if it has announced in this round
that it is working (`Pace`). A node that has just started expects only members that announce
themselves, since members of the last round may be down by now. Each gets twice its slowest recent
time. Time waited in vain is charged to the member that caused it, so broken promises soon stop
counting. Nothing here is agreed with others: it decides when one AGG is submitted, never what is in
the ledger. Memory is constant, and only differences of `now` are used.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from defl.committee import Committee, Timing
from defl.ids import Digest, NodeId, Round
from defl.ledger import LedgerState
from defl.output import ClosedRound, MemberLate, RoundSeen

# A member gets this many times its slowest recent time: with noise of sigma 0.8 a member 50 times
# slower is in 94 % of the rounds; with a factor of 1.5 it was in 88 %.
GRANT = 2.0
# The slowest of this many is about the 94 % quantile.
TIMES_KEPT = 16
# No wait is longer than this many times what a quorum needed: 50 times slower, and noise of 2.5. It
# bounds what a liar gains by delivering ever later.
LONGEST = 128.0
# The same in the first round, when no times are known and nothing is charged: 50 times slower, with
# little noise. A member that announces itself and never delivers costs this once. It is a multiple
# of honest work alone (`Waiting._work_s`): the time until a late member starts is not multiplied.
LONGEST_FIRST = 64.0
# The budget for waiting in vain: this share of the useful time so far, for all members together and
# again divided among f of them, so half of the useful time at worst ...
VAIN_SHARE = 0.25
# ... and this many times the longest recent round: early bad luck must not shut a member out.
VAIN_ROUNDS = 16.0
# A wait for less than this share of what a member needs would be in vain, so there is none.
WORTHWHILE = 0.5
# A member states the slowest of this many of its own trainings ...
OWN_TIMES_KEPT = 8
# ... and stays silent while one takes longer than this many times that: outlasts a pause of five.
OVERDUE = 6.0
MILLISECONDS_PER_S = 1000


@dataclass(slots=True)
class Account:
    """What this node remembers about one member."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))
    vain_s: float = 0.0  # time waited for it in vain

    @property
    def slowest_s(self) -> float:
        return max(self.times, default=0.0)


@dataclass(frozen=True, slots=True)
class Promise:
    """A member's announcement that it is working in the open round, and how long it takes."""

    at: float
    takes_s: float


@dataclass(slots=True)
class OpenRound:
    number: Round
    opened_at: float
    last: frozenset[NodeId]  # authors in the round before; empty if this node has just started
    whole: bool  # seen from its opening, so its times are valid
    promises: dict[NodeId, Promise] = field(default_factory=dict)
    delivered_at: dict[NodeId, float] = field(default_factory=dict)
    held_at: dict[NodeId, float] = field(default_factory=dict)  # whole here; while blind
    own: NodeId | None = None  # this node, if its own update is among them
    base: Digest | None = None  # shared by a quorum of updates
    quorum_at: float | None = None
    work_s: float = 0.0  # how long a member of that quorum needs
    newest_at: float = 0.0  # commit of the newest update with that base
    voters: frozenset[NodeId] = frozenset()  # whose AGG is committed
    given_up: set[NodeId] = field(default_factory=set)  # this node itself, if its training failed
    voted_at: float | None = None
    deadline_at: float | None = None  # of those that were awaited last

    @property
    def expected(self) -> frozenset[NodeId]:
        return self.last | self.promises.keys()

    @property
    def awaited(self) -> frozenset[NodeId]:
        """Expected members still without an update; a committed AGG asks not to be waited for."""
        return self.expected - self.delivered_at.keys() - self.voters - self.given_up

    def began_at(self, member: NodeId) -> float:
        promise = self.promises.get(member)
        if promise is None or member in self.last:
            return self.opened_at
        return max(self.opened_at, promise.at)

    def committed_s(self, member: NodeId) -> float:
        return max(0.0, self.delivered_at[member] - self.began_at(member))

    def took_s(self, member: NodeId) -> float:
        """How long a member that has delivered needed. A commit may have had to wait until enough
        others were up. So while this node is blind, the update's arrival here counts, from the
        member's announcement on: both are up to the member and this node alone."""
        delivered_at = self.delivered_at[member]
        held_at = self.held_at.get(member)
        if held_at is None:
            return self.committed_s(member)
        promise = self.promises.get(member)
        began_at = self.opened_at if promise is None or member in self.last else promise.at
        return max(0.0, min(held_at, delivered_at) - began_at)


class Waiting:
    def __init__(self, committee: Committee, timing: Timing) -> None:
        self._committee = committee
        self._timing = timing
        self._accounts = {member: Account() for member in committee.members}
        self._useful_s = 0.0
        self._vain_s = 0.0
        self._recent: deque[float] = deque(maxlen=TIMES_KEPT)  # useful times of rounds
        self._early: dict[NodeId, tuple[Round, float]] = {}  # promises for the next round
        self._open: OpenRound | None = None
        self._rounds_seen = 0  # whole ones
        self._vote_at: float | None = None
        self._vote_at_known = True  # nothing has happened since it was computed
        self.seen: RoundSeen | None = None  # the newest closed round; None: this node was away

    # --- Events ----------------------------------------------------------------------------

    def enter(self, committee: Committee) -> None:
        """Another epoch begins: nobody waits for members that have left. A member with another key
        is another machine: neither times and debts nor promises of the old one are its own."""
        before, self._committee = self._committee, committee
        stays = {
            m for m in committee.members if before.has(m) and before.keys[m] == committee.keys[m]
        }
        self._accounts = {
            m: self._accounts[m] if m in stays else Account() for m in committee.members
        }
        self._early = {m: early for m, early in self._early.items() if m in stays}
        self._vote_at_known = False
        if self._open is not None:
            self._open.last &= frozenset(committee.members)
            promises = self._open.promises
            self._open.promises = {m: made for m, made in promises.items() if m in stays}
            self._open.held_at.clear()  # offers of the last epoch count no more

    def set_state(self, state: LedgerState, now: float) -> None:
        """The ledger's state after the newest committed block."""
        if self._open is not None and self.vote_at is not None and self._open.awaited:
            self._open.deadline_at = self.vote_at
        self._vote_at_known = False
        if self._open is None:
            self._begin(state, now, whole=not state.current and state.last is None)
        elif state.round + 1 != self._open.number:
            next_one = state.round == self._open.number
            self.seen = None
            if next_one and state.last is not None:
                bases = dict.fromkeys(self._authors(state.last), state.last.base)
                self._close(self._open, bases, now)
            self._begin(state, now, whole=next_one and not state.current)
        if self._open is not None:
            self._commit(self._open, {ref.author: ref.base for ref in state.current}, now)
            self._open.voters = frozenset(state.voters)

    def wants(self, member: NodeId, round_: Round) -> bool:
        """Would this be the member's first promise for this round?"""
        current = self._open
        if current is None:
            return False
        if round_ == current.number + 1:
            return member not in self._early
        return round_ == current.number and member not in current.promises

    def add_promise(self, member: NodeId, round_: Round, takes_s: float, now: float) -> bool:
        """Count a member's first promise for the open round or the next; False for any other."""
        current = self._open
        if current is None or not self.wants(member, round_):
            return False
        if round_ > current.number:
            # The author saw the round close before this node did.
            self._early[member] = (round_, takes_s)
            return True
        self._vote_at_known = False
        current.promises[member] = Promise(now, takes_s)
        # Nothing can be committed before a quorum is up, so the first round begins then.
        beginning = current.number == 1 and not current.delivered_at
        if beginning and len(current.promises) <= self._committee.quorum:
            current.opened_at = now
        return True

    def add_held(self, member: NodeId, now: float, *, is_own: bool = False) -> None:
        """Note that this node has all bytes of the member's update for the open round."""
        if self._open is not None:
            self._open.held_at.setdefault(member, now)
            if is_own:
                self._open.own = member

    def give_up(self, member: NodeId) -> None:
        """The member's training failed: stop waiting for it in this round."""
        if self._open is not None:
            self._vote_at_known = False
            self._open.given_up.add(member)

    def record_vote(self, now: float) -> None:
        if self._open is not None:
            self._open.voted_at = now

    def _begin(self, state: LedgerState, now: float, *, whole: bool) -> None:
        started, last = self._open is None, state.last
        authors = frozenset[NodeId]()
        if last is not None and not started:
            authors = self._authors(last)
        self._open = OpenRound(Round(state.round + 1), now, authors, whole)
        early, self._early = self._early, {}
        for member, (round_, takes_s) in early.items():
            self.add_promise(member, round_, takes_s, now)

    def _authors(self, closed: ClosedRound) -> frozenset[NodeId]:
        """Those that are still members: the round may be of an earlier epoch."""
        authors = (ref.author for ref in closed.updates)
        return frozenset(author for author in authors if self._committee.has(author))

    def _commit(self, current: OpenRound, bases: dict[NodeId, Digest], now: float) -> None:
        new = bases.keys() - current.delivered_at.keys()
        for member in new:
            current.delivered_at[member] = now
        base, sharing = Counter(bases.values()).most_common(1)[0] if bases else (None, 0)
        if sharing < self._committee.quorum:
            return
        if current.quorum_at is None:
            current.quorum_at = current.newest_at = now
            current.work_s = self._work_s(current, [m for m in bases if bases[m] == base])
        current.base = base
        if any(bases[member] == base for member in new):
            current.newest_at = now

    def _work_s(self, current: OpenRound, authors: Iterable[NodeId]) -> float:
        """How long a member of this quorum needs: what it states, since it may have trained before
        it announced itself, and what it took from then on. If a Byzantine member is awaited, at
        most f - 1 of the quorum are Byzantine, so without the f - 1 longest times no lie makes
        this longer than honest work. If none is awaited, no wait is wasted."""
        times = sorted(
            current.took_s(m) + (current.promises[m].takes_s if m in current.promises else 0.0)
            for m in authors
        )
        return times[self._committee.quorum - self._committee.faults]

    # --- Deadlines -------------------------------------------------------------------------

    @property
    def vote_at(self) -> float | None:
        """When this node submits its AGG, as far as known now; None: not before another event."""
        if not self._vote_at_known:
            self._vote_at, self._vote_at_known = self._computed_vote_at(), True
        return self._vote_at

    def _computed_vote_at(self) -> float | None:
        current = self._open
        if current is None or current.quorum_at is None:
            return None
        earliest = max(current.opened_at + self._timing.gst_lt_min_s, current.quorum_at)
        if self._follows(current):
            return earliest
        return max([earliest, *(self.deadline(member) for member in current.awaited)])

    @property
    def is_blind(self) -> bool:
        """Has this node seen no whole round since its start?"""
        return not self._rounds_seen

    def _follows(self, current: OpenRound) -> bool:
        """After a restart a node knows no times, so it votes once an honest member has voted."""
        forgot = self.is_blind and current.number > 1
        return forgot and len(current.voters) > self._committee.faults

    def deadline(self, member: NodeId) -> float:
        """How long the open round waits for an expected member that has not delivered."""
        current = self._open
        if current is None or current.quorum_at is None:
            raise ValueError("no member has a deadline before a quorum has delivered")
        wanted, newest = self._wanted(current, member), current.newest_at - current.opened_at
        if not self._rounds_seen:
            return current.opened_at + wanted
        allowed = self._allowed(member)
        if allowed < WORTHWHILE * (wanted - newest):
            return current.newest_at
        return current.opened_at + min(wanted, newest + allowed)

    def _wanted(self, current: OpenRound, member: NodeId) -> float:
        """How long after its opening a round should stay open for a member, budget permitting."""
        quorum_at = current.opened_at if current.quorum_at is None else current.quorum_at
        quorum_s = quorum_at - current.opened_at
        began_s = current.began_at(member) - current.opened_at
        if not self._rounds_seen:
            longest = LONGEST_FIRST if current.number == 1 else LONGEST
            # An announcement after the quorum's updates gains nothing: members that announce
            # themselves one after the other cost as much as one.
            until_s = min(began_s, quorum_s) + longest * current.work_s
            return min(self._timing.gst_lt_max_s, until_s)
        newest_s = current.newest_at - current.opened_at
        needed = max(began_s + GRANT * self.usual_s(member), 2 * newest_s)
        return min(self._timing.gst_lt_max_s, LONGEST * quorum_s, needed)

    def usual_s(self, member: NodeId) -> float:
        """The member's slowest recent time, as seen here or as the member claims."""
        promise = self._open.promises.get(member) if self._open is not None else None
        return max(self._accounts[member].slowest_s, promise.takes_s if promise else 0.0)

    def _allowed(self, member: NodeId) -> float:
        """The time that may still be wasted on a member, from the common budget or its own."""
        credit = VAIN_ROUNDS * max(self._recent, default=0.0) + VAIN_SHARE * self._useful_s
        account = self._accounts[member]
        own = credit / self._committee.faults + GRANT * account.slowest_s - account.vain_s
        return max(credit - self._vain_s, own)

    # --- Accounts --------------------------------------------------------------------------

    def _close(self, current: OpenRound, bases: dict[NodeId, Digest], now: float) -> None:
        self._commit(current, bases, now)
        late = tuple(
            MemberLate(member, self._vain_wait(current, member, now), self.usual_s(member))
            for member in sorted(current.expected - bases.keys())
        )
        self.seen = _seen(current, bases, late, now)
        if not current.whole:
            return
        if self._rounds_seen:
            self._charge(late)
        for member in bases:
            # A node has its own update long before the others: it waits for its own commit.
            is_own = member == current.own
            took_s = current.committed_s(member) if is_own else current.took_s(member)
            self._accounts[member].times.append(took_s)
        # What an author needed; not the time until it was there.
        useful_s = min(max(map(current.took_s, bases)), self._timing.gst_lt_max_s)
        self._useful_s += useful_s
        self._recent.append(useful_s)
        self._rounds_seen += 1

    def _vain_wait(self, current: OpenRound, member: NodeId, now: float) -> float:
        """The cost of waiting for this member. It includes the time after this node's vote while
        others still waited: otherwise liars could exhaust the nodes' budgets one by one."""
        newest = current.newest_at
        own = (now if current.voted_at is None else current.voted_at) - newest
        of_all = now - newest - self._timing.gst_lt_min_s
        wanted = self._wanted(current, member) - (newest - current.opened_at)
        return max(0.0, min(max(own, of_all), wanted))

    def _charge(self, late: Iterable[MemberLate]) -> None:
        for member in late:
            self._accounts[member.member].vain_s += member.waited_s
        self._vain_s += max((member.waited_s for member in late), default=0.0)

    # --- For people ------------------------------------------------------------------------

    @property
    def open(self) -> OpenRound | None:
        return self._open

    @property
    def awaited(self) -> tuple[NodeId, ...]:
        """Members that are expected in the open round and have not delivered."""
        return () if self._open is None else tuple(sorted(self._open.awaited))

    def vain_s(self, member: NodeId) -> float:
        return self._accounts[member].vain_s


def _seen(
    current: OpenRound, authors: Iterable[NodeId], late: tuple[MemberLate, ...], now: float
) -> RoundSeen:
    opened_at, deadline_at = current.opened_at, current.deadline_at
    return RoundSeen(
        whole=current.whole,
        opened_at=opened_at,
        lasted_s=now - opened_at,
        arrivals=tuple((member, current.delivered_at[member] - opened_at) for member in authors),
        late=late,
        deadline_s=None if deadline_at is None else deadline_at - opened_at,
    )


class OwnPace:
    """This node's own speed, which it states when a round has left it out."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=OWN_TIMES_KEPT)
        self._since: float | None = None  # when the round that this node trains for opened

    def start(self, opened_at: float) -> None:
        self._since = opened_at

    def finish(self, now: float) -> None:
        """A late training counts too: what matters is how long it took."""
        if self._since is not None:
            self._times.append(now - self._since)
        self._since = None

    def fail(self) -> None:
        self._since = None

    def record(self, took_s: float) -> None:
        """Record the time from the opening to the commit, transfers included."""
        self._times.append(took_s)

    @property
    def slowest_s(self) -> float:
        return max(self._times, default=0.0)

    def elapsed_s(self, now: float) -> float:
        """How long this node has been training."""
        return 0.0 if self._since is None else now - self._since

    def statement_s(self, now: float) -> float | None:
        """How long this node will need for a round that opens now; None: unknown."""
        usual = self.slowest_s
        if self._since is None:
            return usual
        elapsed = self.elapsed_s(now)
        if elapsed > OVERDUE * usual:
            return None
        return usual + max(0.0, usual - elapsed)
