"""For test_waiting.py: rounds of n members with the real `defl.waiting` and nothing else.

There are no consensus, blobs or bytes: an update or AGG is committed a fixed time after it is
submitted, and all members see it at once. That is enough to measure how long rounds take and who
takes part, over hundreds of rounds.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from defl.committee import Committee, Timing
from defl.ids import NO_DIGEST, Digest, NodeId, Round
from defl.ledger import LedgerState
from defl.output import ClosedRound, Reference
from defl.waiting import OwnPace, Waiting

COMMIT_S = 0.4
TIMING = Timing(gst_lt_min_s=1.0, gst_lt_max_s=3600.0)
BASE = Digest(bytes(32))


@dataclass(frozen=True, slots=True)
class Move:
    """A liar's actions in a round."""

    delivers_s: float | None = None  # after the opening; None: not at all
    promises_s: float | None = None  # None: no promise
    votes_s: float | None = None  # when it submits its AGG; None: never


Plan = Callable[[int, "Model"], Move]
Work = Callable[[int, random.Random], float]  # round -> seconds


def steady(factor: float = 1.0, sigma: float = 0.1) -> Work:
    return lambda _round, rng: factor * rng.lognormvariate(0.0, sigma)


@dataclass(slots=True)
class Member:
    id: NodeId
    waiting: Waiting
    own: OwnPace = field(default_factory=OwnPace)
    busy_for: int | None = None  # the round that it trains for
    paced: int = 0  # the last round for which it sent its pace


@dataclass(slots=True)
class Result:
    rounds: list[frozenset[NodeId]]  # the authors of each round's updates
    lasted_s: list[float]
    paces: int

    @property
    def total_s(self) -> float:
        return sum(self.lasted_s)

    def share(self, member: int, start: int = 4) -> float:
        judged = self.rounds[start - 1 :]
        return sum(NodeId(member) in authors for authors in judged) / len(judged)


class Model:
    def __init__(
        self,
        nodes: int,
        *,
        rounds: int,
        seed: int = 1,
        work: Mapping[int, Work] | None = None,
        liars: Mapping[int, Plan] | None = None,
        away: Mapping[int, range] | None = None,  # rounds in which a member is down
        restarts: Mapping[int, int] | None = None,  # round -> member that forgets everything
        timing: Timing = TIMING,
    ) -> None:
        self.committee = Committee(tuple(bytes([i]) * 32 for i in range(nodes)))
        self.timing = timing
        self.rounds = rounds
        self.now = 0.0
        self._rng = random.Random(seed)  # noqa: S311 - seeded on purpose
        self._work = dict(work or {})
        self._liars = {NodeId(m): plan for m, plan in (liars or {}).items()}
        self._away = {NodeId(m): span for m, span in (away or {}).items()}
        self._restarts = dict(restarts or {})
        self.members = {
            member: Member(member, Waiting(self.committee, timing))
            for member in self.committee.members
            if member not in self._liars
        }
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._wakes: set[tuple[NodeId, float]] = set()
        self.state = LedgerState(Round(0), (), (), ())
        self.opened_at = 0.0
        self._last: frozenset[NodeId] = frozenset()
        self._result = Result([], [], 0)

    @property
    def open_round(self) -> int:
        return self.state.round + 1

    def run(self) -> Result:
        self._open()
        while self.state.round < self.rounds:
            self.now, _, action = heappop(self._heap)
            action()
            self._vote()
        return self._result

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._heap, (max(when, self.now), self._count, action))

    def is_up(self, member: NodeId) -> bool:
        return self.open_round not in self._away.get(member, range(0))

    def _up(self) -> list[Member]:
        return [node for node in self.members.values() if self.is_up(node.id)]

    # --- A round -----------------------------------------------------------------------------

    def _open(self) -> None:
        self.opened_at = self.now
        self._wakes.clear()
        round_ = self.open_round
        restarting = self._restarts.get(round_)
        for node in self._up():
            if node.id == restarting:
                node.waiting, node.own = Waiting(self.committee, self.timing), OwnPace()
            node.waiting.set_state(self.state, self.now)
        for node in self._up():
            self._pace(node)
            self._train(node)
        for liar, plan in self._liars.items():
            move = plan(round_, self)
            if move.promises_s is not None:
                self._promise(liar, move.promises_s)
            if move.delivers_s is not None:
                self._at(self.now + move.delivers_s, self._upd(liar, round_))
            if move.votes_s is not None:
                self._at(self.now + move.votes_s, self._agg(liar, round_))
        self._at(self.now + self.timing.gst_lt_min_s, lambda: None)

    def _pace(self, node: Member) -> None:
        if node.id in self._last or node.paced == self.open_round:
            return
        takes_s = node.own.statement_s(self.now)
        if takes_s is not None:
            node.paced = self.open_round
            self._result.paces += 1
            self._promise(node.id, takes_s)

    def _promise(self, author: NodeId, takes_s: float) -> None:
        for node in self._up():
            node.waiting.add_promise(author, Round(self.open_round), takes_s, self.now)

    def _train(self, node: Member) -> None:
        if node.busy_for is not None:
            return
        round_ = node.busy_for = self.open_round
        node.own.start(self.now)
        takes_s = self._work.get(node.id, steady())(round_, self._rng)

        def done() -> None:
            node.busy_for = None
            node.own.finish(self.now)
            if not self.is_up(node.id):
                return
            if round_ == self.open_round:
                self._at(self.now + COMMIT_S, self._upd(node.id, round_))
            else:
                self._pace(node)
                self._train(node)

        self._at(self.now + takes_s, done)

    def _vote(self) -> None:
        round_ = self.open_round
        for node in self._up():
            vote_at = node.waiting.vote_at
            if vote_at is None or node.id in self.state.voters:
                continue
            if vote_at <= self.now + 1e-9:
                current = node.waiting._open
                if current is not None and current.voted_at is None:
                    node.waiting.record_vote(self.now)
                    self._at(self.now + COMMIT_S, self._agg(node.id, round_))
            elif (node.id, vote_at) not in self._wakes:
                self._wakes.add((node.id, vote_at))
                self._at(vote_at, lambda: None)

    # --- What is committed -------------------------------------------------------------------

    def _upd(self, author: NodeId, round_: int) -> Callable[[], None]:
        def commit() -> None:
            if round_ == self.open_round:
                reference = Reference(author, NO_DIGEST, 0, BASE, b"", b"")
                self._changed((*self.state.current, reference), self.state.voters)

        return commit

    def _agg(self, author: NodeId, round_: int) -> Callable[[], None]:
        def commit() -> None:
            if round_ == self.open_round and author not in self.state.voters:
                self._changed(self.state.current, (*self.state.voters, author))

        return commit

    def _changed(self, current: tuple[Reference, ...], voters: tuple[NodeId, ...]) -> None:
        quorum, size = self.committee.quorum, self.committee.size
        if len(current) < size and (len(current) < quorum or len(voters) < quorum):
            self.state = LedgerState(self.state.round, current, voters, self.state.closed)
            self._show()
            return
        closed = ClosedRound(Round(self.open_round), NO_DIGEST, BASE, current, 0, 1)
        self._last = frozenset(ref.author for ref in current)
        self._result.rounds.append(self._last)
        self._result.lasted_s.append(self.now - self.opened_at)
        self.state = LedgerState(closed.round, (), (), (closed,))
        self._open()

    def _show(self) -> None:
        for node in self._up():
            node.waiting.set_state(self.state, self.now)
