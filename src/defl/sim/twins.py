"""Twins: two copies of one member, each honest on its own, both with the same key.

Bano, Sonnino, Chursin, Perelman, Li, Ching, Malkhi: "Twins: BFT Systems Made Robust" (OPODIS 2021).
A copy follows the rules but does not know what the other signs, so together they equivocate, vote
twice and forget, in every way that needs no forged bytes. A case says for each of its first views
who leads and how the network is cut; after them it is whole, and the log must grow again. With
crash points, replicas are also killed between two of their events and start again from what was
durable. The replica core is driven directly: no wire, no ingress, no participants. The file is long
because the cases, their enumeration and their judgement are one argument.
"""

import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice, permutations, product
from time import perf_counter

from defl.committee import Rules
from defl.consensus.effects import ConsensusEffects
from defl.consensus.mempool import Mempool
from defl.consensus.replica import Replica
from defl.ids import Digest, Height, NodeId, View
from defl.messages import (
    Block,
    Gossip,
    Message,
    Proposal,
    Timeout,
    Transaction,
    Vote,
)
from defl.output import (
    Durable,
    Envelope,
    EvidenceFound,
    Observing,
    SafetyBroken,
)
from defl.sim.bare_replicas import LIVE, TIMING, Tape, durable_after, facts, mark

# Views after healing by which every honest replica must have committed a block of such a view. The
# three-chain needs the three honest leaders in a row. One that lacks a block loses its turn, three
# views, for each question: to a twin without the block, for a snapshot, for the blocks above it.
HEALING_VIEWS_MAX = 16
# A leader is known for this many views after the scripted ones: more than any run reaches.
VIEWS_MAX = 64
# A case with more steps than this has stopped moving.
STEPS_PER_VIEW_MAX = 4
# In a view each pair exchanges proposals, votes, timeouts, certificates and transactions, and a few
# requests and answers: with more messages than this they would never stop.
MESSAGES_PER_VIEW_AND_PAIR_MAX = 20


class OwnMark(Mempool):
    """What a twin proposes: its own mark each time, so that two twin leaders always contradict."""

    def __init__(self, own: Transaction) -> None:
        super().__init__()
        self._own = own

    def without(self, *_: object) -> tuple[Transaction, ...]:
        return (self._own,)


class Twin(Replica[bytes]):
    """Honest on its own, and not alarmed by the signatures of its other copy."""

    def _saw_own_signature(self, kind: str, view: View) -> None:
        pass

    def propose_with(self, own: Transaction) -> None:
        self._mempool = OwnMark(own)


# --- Cases ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One scripted view."""

    leader: NodeId
    parts: tuple[int, ...]  # for each replica the part of the network that it is in


@dataclass(frozen=True, slots=True)
class Crash:
    """A replica is killed after this many of its own events (timers and messages), and restarts.

    What others do in between does not affect it, so there are no other points to crash at.
    """

    replica: int
    after: int


@dataclass(frozen=True, slots=True)
class TwinsCase:
    """Replicas 0 .. n-1 are the members; then comes one second copy for each of the twins."""

    members: int
    twins: tuple[NodeId, ...]
    steps: tuple[Step, ...]
    crashes: tuple[Crash, ...] = ()

    @property
    def identities(self) -> tuple[NodeId, ...]:
        return (*map(NodeId, range(self.members)), *self.twins)

    @property
    def leaders(self) -> list[NodeId]:
        """By view: the scripted ones, then the honest members in turn. View 0 has none."""
        honest = [NodeId(i) for i in range(self.members) if i not in self.twins]
        scripted = [step.leader for step in self.steps]
        return [NodeId(0), *scripted, *islice(cycle(honest), VIEWS_MAX)]


TWIN = NodeId(0)
COPY = 4  # with four members, the second copy of member 0
SYMMETRIES = [
    (first, *honest, second)
    for first, second in ((TWIN, COPY), (COPY, TWIN))
    for honest in permutations((1, 2, 3))
]


def choices() -> list[Step]:
    """Every leader with every way to cut five replicas into at most two parts."""
    cuts = [(0, *rest) for rest in product((0, 1), repeat=4)]
    return [Step(NodeId(leader), cut) for leader in range(4) for cut in cuts]


def renamed(step: Step, names: tuple[int, ...]) -> Step:
    """The same view with replica i called names[i]; the part of replica 0 is part 0."""
    parts = [0] * 5
    for replica, part in enumerate(step.parts):
        parts[names[replica]] = part
    leader = step.leader if step.leader == TWIN else NodeId(names[step.leader])
    return Step(leader, tuple(part ^ parts[0] for part in parts))


def exhaustive(views: int) -> Iterator[TwinsCase]:
    """All cases of four members with one twin pair, one of each class of symmetric ones.

    The three honest members are alike, and so are the two copies. Each view's choice is the
    smallest of its orbit under the renamings that leave the views before it as they are.
    """
    options = choices()
    number = {step: i for i, step in enumerate(options)}
    tables = [tuple(number[renamed(step, names)] for step in options) for names in SYMMETRIES]

    def extend(chosen: tuple[int, ...], alike: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        if len(chosen) == views:
            yield chosen
            return
        for option in range(len(options)):
            if all(table[option] >= option for table in alike):
                fixing = [table for table in alike if table[option] == option]
                yield from extend((*chosen, option), fixing)

    for chosen in extend((), tables):
        yield TwinsCase(4, (TWIN,), tuple(options[i] for i in chosen))


def crash_points(case: TwinsCase, rules: Rules) -> list[Crash]:
    """Every point at which one replica can crash, up to the first view after the scripted ones.

    Of replicas that are alike in this case, the first one represents the others.
    """
    alike = [n for n in SYMMETRIES if all(renamed(step, n) == step for step in case.steps)]
    events = Run(case, rules).run().events_scripted
    return [
        Crash(replica, after)
        for replica, count in enumerate(events)
        if all(names[replica] >= replica for names in alike)
        for after in range(1, count + 1)
    ]


def with_one_crash(cases: Iterable[TwinsCase], rules: Rules) -> Iterator[TwinsCase]:
    """Each case with each way to kill one replica."""
    for case in cases:
        for crash in crash_points(case, rules):
            yield replace(case, crashes=(crash,))


def with_two_crashes(cases: Iterable[TwinsCase], rules: Rules, each: int) -> Iterator[TwinsCase]:
    """Each case with `each` pairs of crash points, drawn from all of them."""
    for number, case in enumerate(cases):
        rng = random.Random(f"defl/twins/crashes/{number}")
        points = crash_points(case, rules)
        for _ in range(each):
            yield replace(case, crashes=(rng.choice(points), rng.choice(points)))


def spread(cases: Iterable[TwinsCase], every: int, first: int = 0) -> Iterator[TwinsCase]:
    """A deterministic slice: one case in `every`."""
    return islice(cases, first, None, every)


def random_case(seed: int, *, members: int = 7, pairs: int = 2, views: int = 6) -> TwinsCase:
    rng = random.Random(f"defl/twins/{seed}")
    twins = tuple(NodeId(i) for i in sorted(rng.sample(range(members), pairs)))
    steps = []
    for _ in range(views):
        # Half of the leaders are twins, since only twins can lie.
        leader = rng.choice(twins) if rng.random() < 0.5 else NodeId(rng.randrange(members))
        parts = rng.choice((1, 2, 2, 2, 3))
        cut = tuple(rng.randrange(parts) for _ in range(members + pairs))
        steps.append(Step(leader, cut))
    return TwinsCase(members, twins, tuple(steps))


# --- Running one ---------------------------------------------------------------------------


class Run:
    """One case from start to healing. `violations` describes what went wrong."""

    def __init__(self, case: TwinsCase, rules: Rules) -> None:
        self.violations: list[str] = []
        self.evidence: set[tuple[NodeId, str]] = set()  # the accused member, and the kind
        self.case = case
        self.now = 0.0
        federation, signers, record = facts(case.members, rules)
        self._identities = case.identities
        self._is_honest = [member not in case.twins for member in case.identities]
        self._places: dict[NodeId, list[int]] = {}
        self._federation, self._signers = federation, signers
        self._leaders = case.leaders
        self._durable = [Durable(record) for _ in case.identities]
        self._crashes = {(crash.replica, crash.after) for crash in case.crashes}
        self._events = [0] * len(case.identities)
        # Each replica's events until the end of the first view after the scripted ones.
        self.events_scripted: tuple[int, ...] = ()
        self.replicas = [self._replica(place) for place in range(len(case.identities))]
        for place, member in enumerate(case.identities):
            self._places.setdefault(member, []).append(place)
        self._queue: deque[tuple[int, NodeId, Message]] = deque()
        self._delivered = 0
        self._lifted = View(0)  # cuts of views up to here are over
        self._log: dict[Height, Digest] = {}
        self._signed: dict[tuple[type, NodeId, View], Message] = {}
        # Honest replicas that have committed no block of a view after the scripted ones.
        self._behind = {i for i, honest in enumerate(self._is_honest) if honest}

    def _replica(self, place: int) -> Replica[bytes]:
        member = self._identities[place]
        make = Replica if self._is_honest[place] else Twin
        replica: Replica[bytes] = make(
            self._federation,
            member,
            self._signers[member],
            Tape(),
            self._durable[place],
            self._leaders.__getitem__,
        )
        if isinstance(replica, Twin):
            replica.propose_with(mark(2 + place))
        return replica

    @property
    def done(self) -> bool:
        return not self._behind or bool(self.violations)

    def run(self) -> "Run":
        for place, replica in enumerate(self.replicas):
            replica.submit(LIVE, self.now)
            self._collect(place)
        for _ in range(STEPS_PER_VIEW_MAX * (len(self.case.steps) + HEALING_VIEWS_MAX)):
            before = [replica.view for replica in self.replicas]
            self._tick()
            self._deliver()
            for place in [i for i in self._behind if self._is_ahead(self.replicas[i].head)]:
                self._behind.discard(place)  # it came there by a snapshot
            if self.done:
                return self
            if before == [replica.view for replica in self.replicas]:
                # No side has a quorum: the cut lasts until all replicas have given up the view.
                self._lifted = max(before)
        self.violations.append(f"no progress; replicas {sorted(self._behind)} are behind")
        return self

    def _is_ahead(self, block: Block) -> bool:
        return block.view > len(self.case.steps)

    def _tick(self) -> None:
        # A leader that failed before has a shorter period; with a whole one, requests for missing
        # blocks are repeated as often as views fail.
        self.now += TIMING.view_cap_s
        for place, replica in enumerate(self.replicas):
            at = replica.wake_at
            if at is not None and at <= self.now:
                replica.tick(self.now)
                self._collect(place)
                self._count_event(place)

    def _deliver(self) -> None:
        replicas = self.replicas
        views_max = len(self.case.steps) + HEALING_VIEWS_MAX
        messages_max = MESSAGES_PER_VIEW_AND_PAIR_MAX * views_max * len(replicas) ** 2
        while self._queue and not self.done:
            self._delivered += 1
            if self._delivered > messages_max:
                self.violations.append(f"view {max(r.view for r in replicas)} never ends")
                return
            place, sender, message = self._queue.popleft()
            replica = replicas[place]
            replica.receive(sender, message, self.now)
            self._collect(place)
            self._count_event(place)
            if not self.events_scripted and replica.view > len(self.case.steps) + 1:
                self.events_scripted = tuple(self._events)
            if replica.view > views_max and not self.done:
                self.violations.append(
                    f"view {replica.view} is reached, replicas {sorted(self._behind)} are behind"
                )

    def _count_event(self, place: int) -> None:
        self._events[place] += 1
        if (place, self._events[place]) in self._crashes:
            self._restart(place)

    def _restart(self, place: int) -> None:
        """A connection does not outlive the process: what was on its way to it is lost."""
        self._queue = deque(item for item in self._queue if item[0] != place)
        self.replicas[place] = replica = self._replica(place)
        replica.resume(self.now)
        replica.submit(LIVE, self.now)
        self._collect(place)

    def _write(self, place: int, effects: ConsensusEffects) -> None:
        self._durable[place] = durable_after(self._durable[place], effects)

    def _collect(self, place: int) -> None:
        replica = self.replicas[place]
        if replica.idle:
            return
        effects = replica.take()
        if self._crashes:
            self._write(place, effects)
        for envelope in effects.send:
            self._post(place, envelope)
        if self._is_honest[place]:
            for committed in effects.committed:
                self._check_commit(place, committed.block)
        for notice in effects.notices:
            if isinstance(notice, SafetyBroken):
                self.violations.append(f"replica {place}: {notice.reason}")
            elif isinstance(notice, Observing) and self._is_honest[place]:
                self.violations.append(f"honest replica {place} fell silent: {notice.reason}")
            elif isinstance(notice, EvidenceFound):
                first = notice.evidence.first
                self.evidence.add((first.author, type(first).__name__))
                if first.author not in self.case.twins:
                    self.violations.append(f"evidence against honest member {first.author}")

    def _post(self, place: int, envelope: Envelope) -> None:
        """A message belongs to the view that it speaks of, or else that its sender is in."""
        message, sender = envelope.message, self._identities[place]
        if isinstance(message, Vote | Timeout | Proposal):
            view = message.block.view if isinstance(message, Proposal) else message.view
            if self._is_honest[place]:
                self._check_signed_once(sender, view, message)
        elif isinstance(message, Gossip):
            return  # all have the one transaction from the start
        else:
            view = self.replicas[place].view
        if envelope.to is None:
            targets: Iterable[int] = range(len(self.replicas))
        else:
            targets = [target for member in envelope.to for target in self._places[member]]
        steps = self.case.steps
        cut = steps[view - 1].parts if self._lifted < view <= len(steps) else None
        for target in targets:
            if target != place and (cut is None or cut[target] == cut[place]):
                self._queue.append((target, sender, message))

    def _check_signed_once(self, author: NodeId, view: View, message: Message) -> None:
        if self._signed.setdefault((type(message), author, view), message) != message:
            kind = type(message).__name__.lower()
            self.violations.append(f"honest member {author} signed two {kind}s in view {view}")

    def _check_commit(self, place: int, block: Block) -> None:
        if self._log.setdefault(block.height, block.id) != block.id:
            self.violations.append(
                f"replica {place} committed another block at height {block.height}"
            )
        if self._is_ahead(block):
            self._behind.discard(place)


# A reader looks at no more failed cases than these.
BROKEN_MAX = 5


def search(
    cases: Iterable[TwinsCase], rules: Rules
) -> tuple[int, list[tuple[TwinsCase, list[str]]]]:
    """How many cases were run, and those that broke something; it stops after a few of them."""
    count = 0
    broken: list[tuple[TwinsCase, list[str]]] = []
    for case in cases:
        if len(broken) == BROKEN_MAX:
            break
        count += 1
        violations = Run(case, rules).run().violations
        if violations:
            broken.append((case, violations))
    return count, broken


# One case in this many of the exhaustive set is a fair sample of its mixture.
MEASURE_EVERY = 37


def measure(seconds: float, rules: Rules = Rules.HOTSTUFF) -> float:
    """Cases per second on one core: four members, one twin pair, three scripted views."""
    cases = list(spread(exhaustive(3), MEASURE_EVERY))
    started, count = perf_counter(), 0
    while (elapsed := perf_counter() - started) < seconds:
        Run(cases[count % len(cases)], rules).run()
        count += 1
    return count / elapsed
