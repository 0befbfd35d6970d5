"""A node's path from frames to events, on which frames and signatures take time.

As in the real node: a link is not read on while its frame is paid for, examined and verified; one
processor reads frames and checks signatures, a slice at a time, and the links take turns. Chunks
have a link of their own. If signatures cost nothing, everything happens at once, in the order of
arrival.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import lru_cache

from defl.budget import Budget
from defl.errors import PeerFault
from defl.ids import NodeId
from defl.ingress import Ingress
from defl.messages import Chunk, Message
from defl.output import Event, Faulted, OtherEpoch, Question
from defl.wire import decode, says_chunk

# A frame to all members is decoded once: its bytes alone decide the message. Chunks are large and
# go to one member, so they are not remembered. More frames than travel at once among 100 members.
FRAMES_REMEMBERED = 4096
decode_once = lru_cache(FRAMES_REMEMBERED)(decode)


@dataclass(frozen=True, slots=True)
class Pause:
    """Only this peer has to wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Turn:
    """The processor is busy for this long."""

    seconds: float


Admission = Generator[Pause | Turn, None, Event | None]


@dataclass(slots=True)
class VirtualLink:
    peer: NodeId
    frames: deque[bytes] = field(default_factory=deque)
    admission: Admission | None = None  # of the frame in progress


@dataclass(frozen=True, slots=True)
class ProcessorWorld:
    """What a processor needs from outside: a clock, a timer, its node, and a counter of faults."""

    clock: Callable[[], float]
    at: Callable[[float, Callable[[], None]], None]
    wanted: Callable[[NodeId, Message], Message | Question | None]
    has_requested: Callable[[NodeId, Chunk], bool]
    handle: Callable[[Event], None]
    refused: Callable[[PeerFault], None]


class Processor:
    """The processor of one process: what waits here is lost when the process dies."""

    def __init__(
        self, ingress: Ingress, budget: Budget | None, signature_s: float, world: ProcessorWorld
    ) -> None:
        """Without a budget, as for a liar, no peer waits."""
        self._ingress = ingress
        self.budget = budget
        self._signature_s = signature_s
        self._world = world
        self._links: dict[tuple[NodeId, bool], VirtualLink] = {}
        self._turns: deque[tuple[VirtualLink, Turn]] = deque()
        self._working = False
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def enter(self, ingress: Ingress, budget: Budget | None) -> None:
        """Another epoch begins; frames that came before are checked by the last one's facts."""
        self._ingress = ingress
        self.budget = budget

    def receive(self, peer: NodeId, frame: bytes, *, heavy: bool) -> None:
        link = self._links.get((peer, heavy))
        if link is None:
            link = self._links[peer, heavy] = VirtualLink(peer)
        link.frames.append(frame)
        if link.admission is None:
            self._read_on(link)

    def _read_on(self, link: VirtualLink) -> None:
        while link.frames and link.admission is None and not self._stopped:
            link.admission = self._admit(link.peer, link.frames.popleft())
            self._advance(link)

    def _admit(self, peer: NodeId, frame: bytes) -> Admission:
        """The steps of node/net/verifier.py, with virtual time."""
        if self.budget is not None:
            wait_s = self.budget.wait_s(peer, self._world.clock())
            if wait_s > 0:
                yield Pause(wait_s)
        try:
            return (yield from self._admit_paid(peer, frame))
        except PeerFault:
            yield from self._charge(peer, None, len(frame))
            raise

    def _admit_paid(self, peer: NodeId, frame: bytes) -> Admission:
        ingress = self._ingress  # of the epoch in which the frame came
        message = ingress.read(peer, frame, decode if says_chunk(frame) else decode_once)
        read = None if isinstance(message, OtherEpoch) else message
        yield from self._charge(peer, read, len(frame))
        if isinstance(message, OtherEpoch):
            return message
        wanted = self._world.wanted(peer, message)
        if wanted is None or isinstance(wanted, Question):
            return wanted
        examined = ingress.examine(peer, wanted)
        for claims in examined.slices():
            if self.budget is not None:
                wait_s = self.budget.spend(peer, len(claims), self._world.clock())
                if wait_s > 0:
                    yield Pause(wait_s)
            if self._signature_s > 0:
                yield Turn(len(claims) * self._signature_s)
            ingress.check(claims)
        return ingress.accept(examined)

    def _charge(
        self, peer: NodeId, message: Message | None, size: int
    ) -> Generator[Turn, None, None]:
        """Charge a frame and take the time for it; a chunk that was requested is free."""
        if self.budget is None:
            return
        if isinstance(message, Chunk) and self._world.has_requested(peer, message):
            price = self.budget.price_of(message, size)
        else:
            price = self.budget.charge(peer, message, size, self._world.clock())
        if self._signature_s > 0:
            yield Turn(price * self._signature_s)

    def _advance(self, link: VirtualLink) -> None:
        """One step of the link's frame; if that was the last one, its event is handled."""
        if link.admission is None or self._stopped:
            return
        event: Event | None
        try:
            step = next(link.admission)
        except StopIteration as done:
            event = done.value
        except PeerFault as fault:
            self._world.refused(fault)
            event = Faulted(link.peer, str(fault))
        else:
            self._do(link, step)
            return
        link.admission = None
        if event is not None:
            self._world.handle(event)

    def _do(self, link: VirtualLink, step: Pause | Turn) -> None:
        if isinstance(step, Turn):
            self._turns.append((link, step))
            if not self._working:
                self._work()
        else:
            self._world.at(self._world.clock() + step.seconds, lambda: self._resume(link))

    def _work(self) -> None:
        if self._working or not self._turns or self._stopped:
            return
        self._working = True
        link, turn = self._turns.popleft()

        def done() -> None:
            self._working = False
            self._resume(link)
            self._work()

        self._world.at(self._world.clock() + turn.seconds, done)

    def _resume(self, link: VirtualLink) -> None:
        self._advance(link)
        if link.admission is None:
            self._read_on(link)
