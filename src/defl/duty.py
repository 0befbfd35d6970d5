"""The order of duty: when each part of what a participant decided may be carried out.

A pure machine between the participant and its drivers. Outputs and completions go in; what may be
done now comes out. A driver carries that out, in threads or on a virtual disk, each action as long
as it takes, and returns one completion for each action that has one. All ordering is here:

- Records first. Nothing of an output is done before its records and all earlier ones are durable.
  There is one write at a time; whatever is decided meanwhile shares the next.
- A chunk is served and work started once the chunks concerned are in place. A blob is acknowledged
  once it is synced: the f + 1 honest members among q ackers still have it after any power cut.
- A blob is dropped after its writes and readers are done, and written again after the drop.
- A result is in place before the participant hears of it. An update is also synced, together with
  the model that it was trained from: if all members lose power at once, each author still has its
  update, and each model exists or can be aggregated again.
- A failed sync stays failed: the disk may have lost the bytes, and a second sync would not say so.
  The blob is dropped at once, even under its readers, and fetched or computed again: nobody could
  tell after a restart that its sync had failed.
"""

from collections import Counter, deque
from dataclasses import dataclass

from msgspec import Struct

from defl.ids import Digest
from defl.messages import Manifest, StoreAck
from defl.output import (
    Aggregate,
    Aggregated,
    BlobLost,
    Committed,
    Envelope,
    Event,
    Notice,
    Output,
    Persist,
    ServeChunk,
    ServeHandover,
    StoreChunk,
    Train,
    Trained,
    Validate,
    Validated,
    Work,
    WorkFailed,
)
from defl.work import inputs_of

# Decided and not yet written; the driver feeds no event to the participant meanwhile.
OUTPUTS_MAX = 64
# Chunks in memory that are not on disk yet; the driver reads no more of them from peers meanwhile.
CHUNKS_UNDER_WAY_MAX = 16
# Requests of one peer that wait for chunks to reach the disk; it repeats those that are dropped.
SERVES_WAITING_MAX = 16

# --- What may be done now --------------------------------------------------------------------


class WriteRecords(Struct, frozen=True):
    """Write these in this order, all or none, and sync them. Ends with Persisted."""

    persists: tuple[Persist, ...]


class PlaceBlob(Struct, frozen=True):
    """Move the worker's result to where blobs are. Ends with Placed or NotPlaced."""

    manifest: Manifest


class SyncBlob(Struct, frozen=True):
    """Make a whole blob survive a power cut. Ends with Synced or SyncFailed."""

    digest: Digest


class DropBlob(Struct, frozen=True):
    """Ends with Dropped."""

    digest: Digest


class Report(Struct, frozen=True):
    """For people and metrics; nothing depends on it."""

    committed: tuple[Committed, ...]
    notices: tuple[Notice, ...]


class Deliver(Struct, frozen=True):
    """Feed this event to the participant."""

    event: Event


# StoreChunk ends with Stored, work with Worked. What is sent has none.
Step = StoreChunk | ServeChunk | Envelope | Work | PlaceBlob | DropBlob  # it concerns blobs
Action = WriteRecords | Report | SyncBlob | Deliver | ServeHandover | Step

# --- What was done ---------------------------------------------------------------------------


class Persisted(Struct, frozen=True):
    pass


class Stored(Struct, frozen=True):
    digest: Digest
    index: int


class Worked(Struct, frozen=True):
    """The work is over; its result, if it is a blob, waits for Place."""

    work: Work
    result: Validated | Aggregated | Trained | WorkFailed


class Placed(Struct, frozen=True):
    digest: Digest


class NotPlaced(Struct, frozen=True):
    digest: Digest
    reason: str


class Synced(Struct, frozen=True):
    digest: Digest


class SyncFailed(Struct, frozen=True):
    digest: Digest
    reason: str


class Dropped(Struct, frozen=True):
    digest: Digest


Completion = Persisted | Stored | Worked | Placed | NotPlaced | Synced | SyncFailed | Dropped

# --- The machine -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Result:
    """A blob that this node made, until the participant hears of it."""

    work: Work
    event: Aggregated | Trained


class Duty:
    def __init__(self) -> None:
        self._decided: deque[Output] = deque()  # behind the write under way
        self._group: tuple[Output, ...] = ()  # whose records are being written
        self._waiting: list[Step] = []  # for other steps, in the order of their outputs
        self._storing: dict[Digest, set[int]] = {}  # chunks being written
        self._readers: Counter[Digest] = Counter()  # work that is not over
        self._unplaced: list[_Result] = []
        self._placing: set[Digest] = set()  # equal results are placed one after the other
        self._placed: list[_Result] = []  # waiting for syncs
        self._syncing: dict[Digest, bool] = {}  # has it been written to since the sync began?
        self._synced: set[Digest] = set()  # known to survive a power cut
        self._acks: dict[Digest, list[Envelope]] = {}  # waiting for the sync of their blob
        self._lost: dict[Digest, str] = {}  # failed syncs, until the blob is dropped
        self._dropped_early: dict[Digest, str] = {}  # of these, until their readers are done
        self._dropping: set[Digest] = set()
        self._actions: list[Action] = []

    @property
    def has_room(self) -> bool:
        """May the participant decide more? If not, the disk has fallen behind."""
        return len(self._decided) < OUTPUTS_MAX

    @property
    def has_room_for_chunks(self) -> bool:
        waiting = sum(isinstance(step, StoreChunk) for step in self._waiting)
        return waiting + sum(map(len, self._storing.values())) < CHUNKS_UNDER_WAY_MAX

    @property
    def settled(self) -> bool:
        """Has everything that was decided left the node or reached the disk? Work and what waits
        for it may still be under way."""
        if self._group or self._decided or self._storing or self._acks:
            return False
        return not any(isinstance(s, StoreChunk | ServeChunk | Envelope) for s in self._waiting)

    def take(self, output: Output) -> list[Action]:
        """The participant decided this."""
        self._decided.append(output)
        self._write_records()
        return self._take_actions()

    def done(self, completion: Completion) -> list[Action]:
        match completion:
            case Persisted():
                group, self._group = self._group, ()
                for output in group:
                    self._release(output)
                self._write_records()
            case Stored(digest=digest, index=index):
                self._written(digest)
                self._storing[digest].discard(index)
                if not self._storing[digest]:
                    del self._storing[digest]
            case Worked(work=work, result=result):
                self._worked(work, result)
            case Placed(digest=digest):
                self._written(digest)
                self._place_done(self._take_unplaced(digest))
            case NotPlaced(digest=digest, reason=reason):
                work = self._take_unplaced(digest).work
                self._deliver(work, WorkFailed(work, reason))
            case Synced(digest=digest):
                if self._syncing.pop(digest):
                    self._sync(digest)
                else:
                    self._synced.add(digest)
                    self._actions.extend(self._acks.pop(digest, ()))
                self._settle_results()
            case SyncFailed(digest=digest, reason=reason):
                del self._syncing[digest]
                self._lost[digest] = reason
                self._acks.pop(digest, None)
                self._waiting.append(DropBlob(digest))
                self._settle_results()
            case Dropped(digest=digest):
                self._dropping.discard(digest)
                if digest in self._lost:
                    reason = self._lost.pop(digest)
                    self._forget_acks(digest)
                    if digest in self._readers:
                        self._dropped_early[digest] = reason
                    self._actions.append(Deliver(BlobLost(digest)))
        return self._take_actions()

    def _take_actions(self) -> list[Action]:
        if self._waiting:
            self._start_steps()
        actions, self._actions = self._actions, []
        return actions

    # --- Records ---------------------------------------------------------------------------

    def _write_records(self) -> None:
        if self._group:
            return
        while self._decided and self._decided[0].persist is None:
            self._release(self._decided.popleft())
        if self._decided:
            self._group = tuple(self._decided)
            self._decided.clear()
            persists = (output.persist for output in self._group)
            self._actions.append(WriteRecords(tuple(p for p in persists if p is not None)))

    def _release(self, output: Output) -> None:
        """Its records and all earlier ones are durable."""
        for chunk in output.store:
            self._cancel_drop(chunk.manifest.digest)
            self._waiting.append(chunk)
        for item in output.send:
            waits = isinstance(item, Envelope) and isinstance(item.message, StoreAck)
            if isinstance(item, ServeHandover) or not (waits or isinstance(item, ServeChunk)):
                self._actions.append(item)
            elif self._may_wait(item):
                self._waiting.append(item)
        if output.committed or output.notices:
            self._actions.append(Report(output.committed, output.notices))
        self._waiting.extend(output.work)
        self._waiting.extend(map(DropBlob, output.drop))

    def _may_wait(self, item: ServeChunk | Envelope) -> bool:
        """A peer can repeat a request while the disk is full, but must not fill this memory."""
        requests = [s for s in self._waiting if isinstance(s, ServeChunk) and s.to == item.to]
        return item not in self._waiting and len(requests) < SERVES_WAITING_MAX

    # --- Blobs -----------------------------------------------------------------------------

    def _start_steps(self) -> None:
        """Start what need not wait. A step also waits for earlier ones that concern its blobs."""
        waiting: list[Step] = []
        behind: set[Digest] = set()
        for step in self._waiting:
            blobs = _blobs_of(step)
            if behind.isdisjoint(blobs) and self._may_start(step):
                if isinstance(step, Envelope):
                    self._acknowledge(step)
                else:
                    self._begin(step)
                    self._actions.append(step)
            else:
                waiting.append(step)
                behind.update(blobs)
        self._waiting = waiting

    def _may_start(self, step: Step) -> bool:
        match step:
            case StoreChunk(manifest=manifest, index=index):
                digest = manifest.digest
                return digest not in self._dropping and index not in self._storing.get(digest, ())
            case PlaceBlob(manifest=manifest):
                return manifest.digest not in self._dropping | self._placing
            case ServeChunk(digest=digest, index=index):
                return index not in self._storing.get(digest, ())
            case DropBlob(digest=digest):
                busy = (self._storing, self._placing, self._syncing, self._dropping)
                read = digest in self._readers and digest not in self._lost
                return not read and not any(digest in where for where in busy)
            case _:
                blobs = _blobs_of(step)
                stored = self._storing.keys().isdisjoint(blobs)
                return stored and self._dropping.isdisjoint(blobs)

    def _begin(self, step: Step) -> None:
        match step:
            case StoreChunk(manifest=manifest, index=index):
                self._storing.setdefault(manifest.digest, set()).add(index)
            case PlaceBlob(manifest=manifest):
                self._placing.add(manifest.digest)
            case DropBlob(digest=digest):
                self._dropping.add(digest)
                self._synced.discard(digest)
            case Validate() | Aggregate() | Train():
                self._readers.update(inputs_of(step))
            case ServeChunk() | Envelope():
                pass

    def _acknowledge(self, ack: Envelope) -> None:
        """Send an ack once its blob, whose chunks are all in place, is synced."""
        (digest,) = _blobs_of(ack)
        if digest in self._synced:
            self._actions.append(ack)
        elif ack not in self._acks.get(digest, ()):
            self._acks.setdefault(digest, []).append(ack)
            self._sync(digest)

    def _forget_acks(self, digest: Digest) -> None:
        """Drop the acks of a lost blob; the participant decides anew when it has the blob again."""
        lost = [s for s in self._waiting if isinstance(s, Envelope) and digest in _blobs_of(s)]
        self._waiting = [step for step in self._waiting if step not in lost]

    def _cancel_drop(self, digest: Digest) -> None:
        """The blob is wanted again before it was dropped: its bytes are as good as new ones."""
        if digest not in self._lost:
            self._waiting = [step for step in self._waiting if step != DropBlob(digest)]

    # --- Results ---------------------------------------------------------------------------

    def _worked(self, work: Work, result: Validated | Aggregated | Trained | WorkFailed) -> None:
        if isinstance(result, Aggregated | Trained):
            self._cancel_drop(result.manifest.digest)
            self._unplaced.append(_Result(work, result))
            self._waiting.append(PlaceBlob(result.manifest))
        else:
            self._deliver(work, result)

    def _take_unplaced(self, digest: Digest) -> _Result:
        self._placing.discard(digest)
        first = next(i for i, r in enumerate(self._unplaced) if r.event.manifest.digest == digest)
        return self._unplaced.pop(first)

    def _place_done(self, result: _Result) -> None:
        if isinstance(result.work, Train):
            self._placed.append(result)
            self._settle_results()
        else:
            self._deliver(result.work, result.event)
            self._sync(result.event.manifest.digest)  # while the next training runs

    def _written(self, digest: Digest) -> None:
        """Its bytes changed: neither a sync that is done nor one under way covers them."""
        self._synced.discard(digest)
        if digest in self._syncing:
            self._syncing[digest] = True

    def _sync(self, digest: Digest) -> None:
        if not any(digest in where for where in (self._syncing, self._lost, self._dropped_early)):
            self._syncing[digest] = False
            self._actions.append(SyncBlob(digest))

    def _settle_results(self) -> None:
        placed, self._placed = self._placed, []
        for result in placed:
            update = result.event.manifest.digest
            blobs = (*inputs_of(result.work), update)
            unsynced = [blob for blob in blobs if blob not in self._synced]
            lost = {**self._lost, **self._dropped_early}
            reason = next((lost[blob] for blob in unsynced if blob in lost), None)
            if reason is not None:
                self._deliver(result.work, WorkFailed(result.work, reason, update))
            elif unsynced:
                self._placed.append(result)
                for blob in unsynced:
                    self._sync(blob)
            else:
                self._deliver(result.work, result.event)

    def _deliver(self, work: Work, event: Event) -> None:
        """The participant hears of it; it needs its inputs no longer."""
        self._readers.subtract(inputs_of(work))
        self._readers += Counter()  # without those that nothing reads
        for digest in self._dropped_early.keys() - self._readers.keys():
            del self._dropped_early[digest]
            if digest in self._acks:  # of the copy that was fetched since
                self._sync(digest)
        self._actions.append(Deliver(event))


def _blobs_of(step: Step) -> tuple[Digest, ...]:
    match step:
        case StoreChunk(manifest=manifest) | PlaceBlob(manifest=manifest):
            return (manifest.digest,)
        case ServeChunk(digest=digest) | DropBlob(digest=digest):
            return (digest,)
        case Envelope(message=message):
            return (message.digest,) if isinstance(message, StoreAck) else ()
        case _:
            return inputs_of(step)
