"""A small exhaustive model: safety record, restart, timeouts and TC over the real `Replica`.

Four members, one of them silent forever, so that the other three are exactly a quorum. Every
interleaving is tried, up to a depth, of what can happen to the three:

* a message that was sent arrives: now, later, again, or never (loss, delay, reordering and
  duplication are one thing here: what was sent stays available, and nothing forces it to arrive);
* a timer fires, however early compared with the others';
* a process is killed and started again with what was durable. Dying between a write and its
  sends is the same as dying after them with the messages lost, so this needs no case of its own.

In every state that is reached:

* no replica contradicts itself, is accused or falls silent, and all commit the same log;
* **a fair schedule commits**: if everything under way is lost and from then on nothing is lost,
  no process dies and timers fire when nothing else happens, then within `FAIR_ROUNDS_MAX` timers
  each replica commits a block higher than any that was committed before.

The exploration starts at the first state and at each further view of a fair run ("starts"), so
that locks, certificates and snapshots of a log that has grown are in play as well.

Not covered: liars that speak (sim/twins.py), more than four members, more steps than the depth,
wire, ingress and participants (sim/cluster.py). One leader order represents all.

Why it is fast: an event touches one replica only. Each replica's distinct situations are numbered
by a fingerprint of all that the object and its disk hold, and what an event does to a situation
is computed once. A state of the model is then three numbers and the set of what was sent.

    python -m defl.sim.explorer [DEPTH]        # `make model`
"""

import random
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import process_time

from defl.committee import Rules
from defl.consensus.replica import Replica
from defl.ids import Digest, Height, NodeId, View
from defl.messages import Proposal, Timeout, Vote
from defl.sim.situations import (
    LIVING,
    RESTART,
    TICK,
    ExploredMember,
    Make,
    Post,
    bits,
    title,
    union,
)

# Each member of the quorum may restart once: with fewer restarts, one still counts all statements.
RESTARTS = 3
# Timers until each replica must have committed: the three-chain wants three honest leaders in a
# row, the silent one breaks every fourth view, and a replica that lacks blocks requests them first.
FAIR_ROUNDS_MAX = 12
# One fair round delivers a handful of messages for each pair and view; more than this never ends.
FAIR_MESSAGES_MAX = 2000
# How many views of the fair run the exploration starts from: all leaders, with a log and without.
STARTS = 8
# What `make model` tries; some minutes.
DEPTH = 6
WALKS = 300
WALK_LENGTH = 40
VIOLATIONS_MAX = 3


@dataclass(slots=True)
class ExploredState:
    """One state of the whole model, with the path that led to it."""

    at: tuple[int, ...]  # each living member's situation
    sent: int  # set of messages that may still arrive
    restarts: int
    before: "ExploredState | None" = None
    event: tuple[NodeId, int] | None = None

    @property
    def events(self) -> Iterator[tuple[NodeId, int]]:
        """Newest first."""
        state: ExploredState | None = self
        while state is not None and state.event is not None:
            yield state.event
            state = state.before


@dataclass(slots=True)
class Exploration:
    depth: int
    states: int = 0
    events: int = 0  # that changed something
    situations: int = 0
    fair_runs: int = 0
    fair_rounds_max: int = 0
    seconds: float = 0.0  # of processor time
    violations: list[str] = field(default_factory=list)


class Explorer:
    def __init__(self, rules: Rules, make: Make = Replica) -> None:
        self.rules = rules
        self.posts: list[Post] = []
        self._post_numbers: dict[Post, int] = {}
        self._to = dict.fromkeys(LIVING, 0)  # the messages to each living member
        self._signed: dict[tuple[NodeId, type, View], int] = {}
        self._contradicted_by: list[int] = []  # for each message, its author's contradictions
        self._complaints: list[str] = []
        self._log: dict[Height, Digest] = {}
        self._fair: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.members = [ExploredMember(self, me, make) for me in LIVING]

    def number(self, post: Post) -> int:
        known = self._post_numbers.get(post)
        if known is None:
            known = self._post_numbers[post] = len(self.posts)
            self.posts.append(post)
            self._to[post.target] |= 1 << known
            self._contradicted_by.append(self._contradictions(post, known))
        return known

    def _contradictions(self, post: Post, number: int) -> int:
        """Messages with other content that the same member signed for the same view."""
        message = post.message
        if not isinstance(message, Vote | Timeout | Proposal):
            return 0
        view = message.block.view if isinstance(message, Proposal) else message.view
        key = (post.sender, type(message), view)
        others = self._signed.get(key, 0)
        self._signed[key] = others | 1 << number
        contradicting = [i for i in bits(others) if self.posts[i].message != message]
        for other in contradicting:
            self._contradicted_by[other] |= 1 << number
        return union(1 << other for other in contradicting)

    def complain(self, violation: str) -> None:
        self._complaints.append(violation)

    # --- Where to start --------------------------------------------------------------------

    def starts(self, count: int = STARTS) -> list[ExploredState]:
        """The first state, and those of a fair run in which all have entered another view."""
        first = [member.start() for member in self.members]
        at = tuple(number for number, _ in first)
        queue = deque(bits(union(sent for _, sent in first)))
        states = [ExploredState(at, 0, 0)]
        while len(states) < count:
            for reached in self._fair_steps(at, queue):
                at = reached
                if len({self._view(at, me) for me in LIVING}) > 1:
                    continue
                if self._view(at, LIVING[0]) > self._view(states[-1].at, LIVING[0]):
                    states.append(ExploredState(at, union(1 << post for post in queue), 0))
        return states[:count]

    def _view(self, at: tuple[int, ...], me: NodeId) -> View:
        return self.members[me].situations[at[me]].view

    # --- All interleavings -----------------------------------------------------------------

    def explore(self, depth: int, *, restarts: int = RESTARTS, starts: int = STARTS) -> Exploration:
        began = process_time()
        result = Exploration(depth)
        for start in self.starts(starts):
            self._explore_from(start, depth, restarts, result)
        result.situations = sum(len(member.situations) for member in self.members)
        result.seconds = process_time() - began
        return result

    def _explore_from(
        self, start: ExploredState, depth: int, restarts: int, result: Exploration
    ) -> None:
        seen: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        level = [start]
        self._reached(start, seen)
        self._judge(start, result)
        for _ in range(depth):
            following: list[ExploredState] = []
            for state in level:
                for successor in self._successors(state, restarts):
                    result.events += 1
                    if self._complaints:
                        self._report(successor, result)
                    if len(result.violations) >= VIOLATIONS_MAX:
                        return
                    new_place = successor.at not in seen
                    if self._reached(successor, seen):
                        following.append(successor)
                        if new_place:
                            self._judge(successor, result)
            level = following
        result.states += sum(len(kept) for kept in seen.values())

    @staticmethod
    def _reached(state: ExploredState, seen: dict[tuple[int, ...], list[tuple[int, int]]]) -> bool:
        """False if everything that can follow can also follow from a state seen before."""
        known = seen.setdefault(state.at, [])
        for sent, restarts in known:
            if sent | state.sent == sent and restarts <= state.restarts:
                return False
        known.append((state.sent, state.restarts))
        return True

    def _successors(
        self, state: ExploredState, restarts: int, members: tuple[NodeId, ...] = LIVING
    ) -> Iterator[ExploredState]:
        for me in members:
            here = state.at[me]
            events = list(bits(state.sent & self._to[me]))
            if self.members[me].situations[here].ticks:
                events.append(TICK)
            if state.restarts < restarts:
                events.append(RESTART)
            for event in events:
                there, sent = self.members[me].after(here, event)
                if there != here or sent | state.sent != state.sent:
                    for post in bits(sent & ~state.sent):
                        if self._contradicted_by[post] & (state.sent | sent):
                            self.complain(f"replica {me} contradicts itself")
                    at = (*state.at[:me], there, *state.at[me + 1 :])
                    used = state.restarts + (event == RESTART)
                    yield ExploredState(at, state.sent | sent, used, state, (me, event))

    # --- Deeper, by chance -----------------------------------------------------------------

    def wander(
        self, walks: int, length: int, *, seed: int, restarts: int = RESTARTS
    ) -> Exploration:
        """Random paths of many events, judged at every step."""
        began = process_time()
        result = Exploration(length)
        starts = self.starts()
        rng = random.Random(f"defl/model/{seed}")
        judged: set[tuple[int, ...]] = set()
        for walk in range(walks):
            state = starts[walk % len(starts)]
            for _ in range(length):
                # Each replica as often as the others, however many messages wait for it.
                me = rng.choice(LIVING)
                successors = list(self._successors(state, restarts, (me,)))
                if not successors:
                    continue
                state = rng.choice(successors)
                result.events += 1
                if state.at not in judged:
                    judged.add(state.at)
                    self._judge(state, result)
                if len(result.violations) >= VIOLATIONS_MAX:
                    return result
        result.states = len(judged)
        result.situations = sum(len(member.situations) for member in self.members)
        result.seconds = process_time() - began
        return result

    # --- What must hold --------------------------------------------------------------------

    def _judge(self, state: ExploredState, result: Exploration) -> None:
        for me in LIVING:
            height, block_id = self.members[me].situations[state.at[me]].head
            if self._log.setdefault(height, block_id) != block_id:
                self.complain(f"replica {me} has committed another block at height {height}")
        result.fair_runs += 1
        rounds = self._fair_rounds(state.at)
        if rounds is None:
            self.complain("a fair schedule commits nothing from here")
        else:
            result.fair_rounds_max = max(result.fair_rounds_max, rounds)
        if self._complaints:
            self._report(state, result)

    def _fair_rounds(self, at: tuple[int, ...]) -> int | None:
        """The number of timers until each replica has committed something new; None: never."""
        goal = max(self._height(at, me) for me in LIVING)
        for rounds in range(FAIR_ROUNDS_MAX + 1):
            if all(self._height(at, me) > goal for me in LIVING):
                return rounds
            following = self._fair.get(at)
            if following is None:
                following = at
                for following in self._fair_steps(at, deque()):  # noqa: B007 - the last one counts
                    pass
                self._fair[at] = following
            at = following
        return None

    def _fair_steps(self, at: tuple[int, ...], queue: deque[int]) -> Iterator[tuple[int, ...]]:
        """All that is under way arrives in order; then every timer fires once."""
        for fire in (False, True):
            if fire:
                for me in LIVING:
                    if self.members[me].situations[at[me]].ticks:
                        at, sent = self._step(at, me, TICK)
                        queue.extend(bits(sent))
                        yield at
            delivered = 0
            while queue and delivered < FAIR_MESSAGES_MAX:
                delivered += 1
                post = queue.popleft()
                at, sent = self._step(at, self.posts[post].target, post)
                queue.extend(bits(sent))
                yield at

    def _step(self, at: tuple[int, ...], me: NodeId, event: int) -> tuple[tuple[int, ...], int]:
        there, sent = self.members[me].after(at[me], event)
        return (*at[:me], there, *at[me + 1 :]), sent

    def _height(self, at: tuple[int, ...], me: NodeId) -> Height:
        return self.members[me].situations[at[me]].head[0]

    # --- For people ------------------------------------------------------------------------

    def _report(self, state: ExploredState, result: Exploration) -> None:
        events = [self._described(me, event) for me, event in reversed(list(state.events))]
        views = ", ".join(str(self._view(state.at, me)) for me in LIVING)
        for complaint in self._complaints:
            lines = [complaint, *(f"  {i + 1}. {text}" for i, text in enumerate(events))]
            result.violations.append("\n".join([*lines, f"  (now in views {views})"]))
        self._complaints.clear()

    def _described(self, me: NodeId, event: int) -> str:
        if event == TICK:
            return f"the timer of replica {me} fires"
        if event == RESTART:
            return f"replica {me} is killed and starts again"
        post = self.posts[event]
        return f"replica {me} receives {title(post.message)} of {post.sender}"


def main(arguments: list[str]) -> int:
    depth = int(arguments[0]) if arguments else DEPTH
    broken = 0
    for rules in Rules:
        model = Explorer(rules)
        whole = model.explore(depth)
        sys.stdout.write(
            f"{rules.value}, all interleavings of {depth} events from {STARTS} starts, up to "
            f"{RESTARTS} restarts: {_figures(whole)}\n"
        )
        walks = model.wander(WALKS, WALK_LENGTH, seed=1)
        sys.stdout.write(f"{WALKS} random paths of {WALK_LENGTH} events: {_figures(walks)}\n")
        for violation in (*whole.violations, *walks.violations):
            broken += 1
            sys.stdout.write(f"{violation}\n")
    return 1 if broken else 0


def _figures(result: Exploration) -> str:
    return (
        f"{result.states} states, {result.events} events, {result.situations} situations of one "
        f"replica, {result.fair_runs} fair runs (commit after {result.fair_rounds_max} timers at "
        f"most), {result.seconds:.0f} s, {len(result.violations)} violations"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
