"""One simulated process: carries out what its node's duty allows, on a virtual disk and clock.

It mirrors what node/driver.py does with threads and sockets. It knows no order of its own: duty.py
says what may be done, and each action takes its time.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from defl.duty import (
    Action,
    Completion,
    Deliver,
    DropBlob,
    Duty,
    PlaceBlob,
    Report,
    SyncBlob,
    Worked,
    WriteRecords,
)
from defl.errors import ChunkRotten, LocalFault
from defl.ids import Digest
from defl.output import (
    Aggregated,
    ChunkLost,
    Envelope,
    Event,
    Output,
    ReceivedChunk,
    ServeChunk,
    ServeHandover,
    StoreChunk,
    Trained,
    Work,
    WorkFailed,
)
from defl.sim.conditions import WriteTimes
from defl.sim.disk import Disk
from defl.sim.durability import InputsCheck
from defl.sim.task import WorkDone
from defl.sim.writes import Writes, WritesWorld
from defl.work import inputs_of

Inputs = dict[Digest, bytes]


@dataclass(frozen=True, slots=True)
class DriverWorld:
    """What a process needs of the world around it."""

    after: Callable[[float, Callable[[], None]], None]  # seconds from now, what to do then
    rng: Random
    decide: Callable[[Event], Output]
    send: Callable[[Envelope | ServeChunk | ServeHandover], None]
    report: Callable[[Report], None]
    work_takes_s: Callable[[Work], float]
    work: Callable[[Work, Inputs], WorkDone]
    dies: Callable[[], bool]  # is the process killed while it carries this out?
    crash: Callable[[], None]
    is_over: Callable[[], bool]  # does the participant decide nothing more?
    end: Callable[[], None]
    written: Callable[[], None]  # the disk has changed
    sync_fails: Callable[[], bool]


class VirtualDriver:
    def __init__(
        self,
        disk: Disk,
        times: WriteTimes,
        chunk_bytes: int,
        world: DriverWorld,
        check: InputsCheck | None,
    ) -> None:
        self._disk = disk
        self._world = world
        self._check = check
        self._duty = Duty()
        writes = WritesWorld(
            world.after, world.rng, world.sync_fails, world.written, self._complete
        )
        self._writes = Writes(disk, times, chunk_bytes, writes)
        self._todo: deque[Action] = deque()
        self._busy = False
        self._events: deque[Event] = deque()
        self._chunks: deque[ReceivedChunk] = deque()  # wait for room
        self._dead = False

    def handle(self, event: Event) -> None:
        """The participant hears of it, now or when there is room for what it decides."""
        if isinstance(event, ReceivedChunk) and not self._duty.has_room_for_chunks:
            self._chunks.append(event)
        else:
            self._events.append(event)
        self._run()

    def die(self) -> None:
        self._dead = True
        self._writes.die()

    def read_chunk(self, digest: Digest, index: int) -> bytes | None:
        """The chunk, or None if it is not here or has rotted."""
        blob = self._disk.blobs.get(digest)
        if blob is None or index not in blob.chunks:
            return None
        if index in blob.rotten:
            self._lose(digest, index)
            return None
        return blob.chunks[index]

    def _lose(self, digest: Digest, index: int) -> None:
        self._disk.discard(digest, index)
        self._events.append(ChunkLost(digest, index))

    def _complete(self, completion: Completion) -> None:
        if not self._dead:
            self._do_all(self._duty.done(completion))
            self._run()

    def _run(self) -> None:
        while not self._busy and not self._dead:
            if self._chunks and self._duty.has_room_for_chunks:
                self._events.append(self._chunks.popleft())
            if self._world.is_over():
                if self._duty.settled:
                    self._world.end()
                return
            if not self._events or not self._duty.has_room:
                return
            self._do_all(self._duty.take(self._world.decide(self._events.popleft())))

    def _do_all(self, actions: list[Action]) -> None:
        """A process may be killed before, between and after its actions."""
        self._todo.extend(actions)
        if self._busy:
            return
        left = self._world.rng.randint(0, len(self._todo)) if self._world.dies() else None
        self._busy = True
        while self._todo and left != 0 and not self._dead:
            left = None if left is None else left - 1
            self._do(self._todo.popleft())
        self._busy = False
        if left is not None and not self._dead:
            self._world.crash()

    def _do(self, action: Action) -> None:
        match action:
            case Envelope() | ServeChunk() | ServeHandover():
                self._world.send(action)
            case WriteRecords() | StoreChunk() | PlaceBlob() | SyncBlob() | DropBlob():
                self._writes.add(action)
            case Report():
                self._world.report(action)
            case Deliver(event=event):
                self._events.append(event)
            case _:
                self._start(action)

    # --- Work ------------------------------------------------------------------------------

    def _start(self, work: Work) -> None:
        if self._check is not None:
            self._check.present(work, self._disk)
        self._world.after(self._world.work_takes_s(work), partial(self._finish, work))

    def _finish(self, work: Work) -> None:
        if self._dead:
            return
        if self._check is not None:
            self._check.present(work, self._disk)
        try:
            inputs = {digest: self._read(digest) for digest in inputs_of(work)}
        except LocalFault as fault:
            self._complete(Worked(work, WorkFailed(work, str(fault))))
            return
        done = self._world.work(work, inputs)
        if isinstance(done.result, Aggregated | Trained) and done.payload is not None:
            self._writes.add_result(done.result.manifest.digest, bytes(done.payload))
        self._complete(Worked(work, done.result))

    def _read(self, digest: Digest) -> bytes:
        """Blobs are checked before work uses them."""
        blob = self._disk.blobs.get(digest)
        if blob is None or not blob.whole:
            raise LocalFault(f"blob {digest.hex()} is not complete here")
        if blob.rotten:
            index = min(blob.rotten)
            self._lose(digest, index)
            raise ChunkRotten(digest, index)
        return blob.payload
