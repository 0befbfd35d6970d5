"""One living member of the model: each situation that it can be in, and where events lead.

A situation is a real `Replica` with its disk. It gets a number by a fingerprint of all that both
hold, and each event in it is computed once; a replica that is needed a second time is replayed.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from types import FunctionType, MethodType
from typing import NamedTuple, Protocol

from msgspec import Struct

from defl.committee import Committee, Rules, Timing
from defl.consensus.replica import Replica
from defl.consensus.rules import ChainRules
from defl.ids import Digest, Height, NodeId, View
from defl.messages import (
    Block,
    BlockRequest,
    Blocks,
    Certificates,
    Gossip,
    Message,
    Proposal,
    Snapshot,
    Status,
    Timeout,
    Vote,
)
from defl.output import Durable, EvidenceFound, Observing, SafetyBroken
from defl.sim.bare_replicas import LIVE, Tape, durable_after, facts
from defl.sim.signer import NoopSigner

MEMBERS = 4
SILENT = NodeId(3)
LIVING = (NodeId(0), NodeId(1), NodeId(2))
# Replicas that are kept ready to continue; others are replayed when needed.
READY_MAX = 20_000

TICK = -1
RESTART = -2  # other events are the number of the message that arrives


def leader(view: View) -> NodeId:
    """The silent member leads the first view, where only timeouts can be sent."""
    return NodeId((view + 2) % MEMBERS)


class Post(NamedTuple):
    """A message to one of the living."""

    target: NodeId
    sender: NodeId
    message: Message


class Situation(NamedTuple):
    """One replica and its disk, as reached first: `event` in the situation `before`."""

    before: int | None  # None: started for the first time
    event: int
    now: float  # on this replica's own clock
    durable: Durable
    view: View
    head: tuple[Height, Digest]
    ticks: bool  # is its timer running?


# What is compared as it is; NewTypes (views, digests) are these as well.
PLAIN = frozenset({bytes, int, str, bool, type(None)})
# What never changes in a replica, or has no content.
CONSTANT = frozenset(
    {FunctionType, MethodType, type, Tape, NoopSigner, ChainRules, Committee, Timing}
)


def fingerprint(value: object, now: float) -> Hashable:
    """Everything that an object holds, in comparable form. Floats are times, relative to now."""
    kind = type(value)
    if kind in CONSTANT:
        return None
    if isinstance(value, float):
        # All periods are one second (bare_replicas.TIMING), so what is older than that is over.
        return max(-1.0, value - now)
    if isinstance(value, Block):
        return value.id
    if isinstance(value, Struct):
        return value
    if isinstance(value, dict):
        return frozenset(
            (key, item if type(item) in PLAIN else fingerprint(item, now))
            for key, item in value.items()
        )
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, list | tuple):
        return tuple(item if type(item) in PLAIN else fingerprint(item, now) for item in value)
    names: Iterable[str] = getattr(value, "__dict__", ()) or getattr(value, "__slots__", ())
    items = [getattr(value, name) for name in names]
    return tuple(item if type(item) in PLAIN else fingerprint(item, now) for item in items)


class ExploredWorld(Protocol):
    """What a member knows about the model that it is part of."""

    rules: Rules
    posts: list[Post]

    def number(self, post: Post) -> int: ...

    def complain(self, violation: str) -> None: ...


Make = Callable[..., Replica[bytes]]


class ExploredMember:
    """All situations that one living member has reached, and where events led from them."""

    def __init__(self, world: ExploredWorld, me: NodeId, make: Make) -> None:
        self._world = world
        self._me = me
        self._make = make
        self._numbers: dict[object, int] = {}
        self._ready: dict[int, Replica[bytes]] = {}
        self._effects: dict[tuple[int, int], tuple[int, int]] = {}
        self.situations: list[Situation] = []

    def start(self) -> tuple[int, int]:
        return self._restarted(None, self._durable(None), 0.0)

    def _durable(self, number: int | None) -> Durable:
        """What is on the disk in a situation; None: before the first start."""
        if number is None:
            return Durable(facts(MEMBERS, self._world.rules)[2])
        return self.situations[number].durable

    def after(self, situation: int, event: int) -> tuple[int, int]:
        """The situation that the event leads to, and the set of what is sent."""
        known = self._effects.get((situation, event))
        if known is None:
            known = self._effects[situation, event] = self._happen(situation, event)
        return known

    def _happen(self, number: int, event: int) -> tuple[int, int]:
        situation = self.situations[number]
        if event == RESTART:
            return self._restarted(number, situation.durable, situation.now)
        replica = self._ready.pop(number, None) or self.replayed(number)
        now = self._apply(replica, event, situation.now)
        return self._settled(replica, number, event, now, situation.durable)

    def _apply(self, replica: Replica[bytes], event: int, now: float) -> float:
        if event == TICK:
            now = max(now, replica.wake_at or now)
            replica.tick(now)
        else:
            post = self._world.posts[event]
            replica.receive(post.sender, post.message, now)
        return now

    def _restarted(self, before: int | None, durable: Durable, now: float) -> tuple[int, int]:
        replica = self._started(durable, now)
        return self._settled(replica, before, RESTART, now, durable)

    def _started(self, durable: Durable, now: float) -> Replica[bytes]:
        federation, signers, _ = facts(MEMBERS, self._world.rules)
        replica = self._make(federation, self._me, signers[self._me], Tape(), durable, leader)
        replica.resume(now)
        replica.submit(LIVE, now)  # there is always work, so that the timer runs
        return replica

    def replayed(self, number: int) -> Replica[bytes]:
        """A fresh copy of the replica in this situation."""
        events: list[int] = []
        situation = self.situations[number]
        while situation.before is not None and situation.event != RESTART:
            events.append(situation.event)
            situation = self.situations[situation.before]
        now = situation.now
        replica = self._started(self._durable(situation.before), now)
        replica.take()
        for event in reversed(events):
            now = self._apply(replica, event, now)
            replica.take()
        return replica

    def _settled(
        self, replica: Replica[bytes], before: int | None, event: int, now: float, durable: Durable
    ) -> tuple[int, int]:
        effects = replica.take()
        durable = durable_after(durable, effects)
        for notice in effects.notices:
            if isinstance(notice, SafetyBroken | Observing | EvidenceFound):
                self._world.complain(f"replica {self._me}: {notice}")
        sent = 0
        for envelope in effects.send:
            if isinstance(envelope.message, Gossip):
                continue  # all have the one transaction from the start
            for target in LIVING if envelope.to is None else envelope.to:
                if target not in (self._me, SILENT):
                    sent |= 1 << self._world.number(Post(target, self._me, envelope.message))
        number = self.number_of(replica, now, durable)
        if number == len(self.situations):
            head = (replica.head.height, replica.head.id)
            ticks = replica.wake_at is not None
            self.situations.append(
                Situation(before, event, now, durable, replica.view, head, ticks)
            )
        # Another clock may have led to the same situation; it continues from the first one's.
        if number not in self._ready and now == self.situations[number].now:
            self._ready[number] = replica
            if len(self._ready) > READY_MAX:
                del self._ready[next(iter(self._ready))]
        return number, sent

    def number_of(self, replica: Replica[bytes], now: float, durable: Durable) -> int:
        """The same number for all that holds the same; the next free one for what is new."""
        key = (
            fingerprint(replica, now),
            durable.record,
            frozenset(block.id for block in durable.blocks),
            durable.snapshot.block.id if durable.snapshot is not None else None,
        )
        return self._numbers.setdefault(key, len(self.situations))


def title(message: Message) -> str:
    match message:
        case Proposal(block=block):
            return f"the proposal of view {block.view}"
        case Vote(view=view) | Timeout(view=view):
            return f"the {type(message).__name__.lower()} of view {view}"
        case Certificates(qc=qc, tc=tc):
            return f"QC {qc.view}" + (f" and TC {tc.view}" if tc is not None else "")
        case Status(view=view):
            return f"the status 'in view {view}'"
        case BlockRequest(height=height):
            return f"a request for blocks above height {height}"
        case Blocks() | Snapshot():
            return f"the {type(message).__name__.lower()}"
        case _:
            return type(message).__name__


def bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
