"""The order of duty: what may be done when, whatever a driver's threads do in between."""

from collections.abc import Iterator, Sequence
from copy import deepcopy

import pytest

from defl import duty as order
from defl.duty import (
    Action,
    Completion,
    Deliver,
    DropBlob,
    Dropped,
    Duty,
    NotPlaced,
    Persisted,
    PlaceBlob,
    Placed,
    Report,
    Stored,
    SyncBlob,
    Synced,
    SyncFailed,
    Worked,
    WriteRecords,
)
from defl.ids import NO_DIGEST, Digest, NodeId, Round
from defl.messages import Manifest, NotHeld, StoreAck
from defl.output import (
    Aggregate,
    Aggregated,
    BlobLost,
    Envelope,
    ModelReady,
    Output,
    Persist,
    ServeChunk,
    StoreChunk,
    Train,
    Trained,
    Validate,
    Validated,
    WorkFailed,
)
from defl.schema import Codec
from defl.work import inputs_of


def manifest_of(number: int, base: Digest = NO_DIGEST) -> Manifest:
    chunks = (Digest(bytes([number]) * 32), Digest(bytes([number, 1]) * 16))
    return Manifest(Digest(bytes(32)), Codec.FP32, base, 2, chunks)


MODEL = manifest_of(1)
UPDATE = manifest_of(2, MODEL.digest)
OTHERS = manifest_of(3, MODEL.digest)  # another member's update
PEER = NodeId(2)

HELLO = Envelope(None, NotHeld(Digest(b"h" * 32)))
WORLD = Envelope(None, NotHeld(Digest(b"w" * 32)))
SERVE = ServeChunk(PEER, OTHERS.digest, 0)
ACK = Envelope(
    (PEER,), StoreAck(Round(2), PEER, OTHERS.digest, MODEL.digest, 2, NodeId(0), b"signature")
)
FIRST, SECOND = (StoreChunk(OTHERS, index, b"x") for index in (0, 1))
VALIDATE = Validate(OTHERS)
AGGREGATE = Aggregate(Round(1), Digest(b"b" * 32), (), Digest(b"c" * 32), 1)
TRAIN = Train(Round(2), MODEL.digest)
TRAINED = Trained(Round(2), UPDATE)
AGGREGATED = Aggregated(Round(1), MODEL)


def record(number: int) -> Persist:
    return Persist(forget_round=Round(number))


def placed_model(duty: Duty) -> None:
    """The model was aggregated by this process and is being synced."""
    assert duty.take(Output(work=(AGGREGATE,))) == [AGGREGATE]
    assert duty.done(Worked(AGGREGATE, AGGREGATED)) == [PlaceBlob(MODEL)]
    assert duty.done(Placed(MODEL.digest)) == [Deliver(AGGREGATED), SyncBlob(MODEL.digest)]


def trained(duty: Duty) -> list[Action]:
    """An update was trained and is in place; returns what may be done then."""
    assert duty.take(Output(work=(TRAIN,))) == [TRAIN]
    assert duty.done(Worked(TRAIN, TRAINED)) == [PlaceBlob(UPDATE)]
    return duty.done(Placed(UPDATE.digest))


# --- Records ---------------------------------------------------------------------------------


def test_nothing_of_an_output_is_done_before_its_record_is_durable() -> None:
    notice = ModelReady(Round(1), MODEL.digest)
    decided = Output(
        persist=record(1),
        store=(FIRST,),
        send=(HELLO,),
        work=(TRAIN,),
        drop=(UPDATE.digest,),
        notices=(notice,),
    )
    duty = Duty()
    assert duty.take(decided) == [WriteRecords((record(1),))]
    assert duty.done(Persisted()) == [
        HELLO,
        Report((), (notice,)),
        FIRST,
        TRAIN,
        DropBlob(UPDATE.digest),
    ]


def test_an_output_without_a_record_waits_for_the_records_ahead_of_it_only() -> None:
    duty = Duty()
    assert duty.take(Output(send=(HELLO,))) == [HELLO]
    duty.take(Output(persist=record(1)))
    assert duty.take(Output(send=(WORLD,))) == []
    assert duty.done(Persisted()) == [WORLD]


def test_what_is_decided_during_a_write_shares_the_next_and_is_released_in_order() -> None:
    duty = Duty()
    duty.take(Output(persist=record(1)))
    for number, item in ((2, HELLO), (3, WORLD)):
        assert duty.take(Output(persist=record(number), send=(item,))) == []
    assert duty.done(Persisted()) == [WriteRecords((record(2), record(3)))]
    assert duty.done(Persisted()) == [HELLO, WORLD]
    assert duty.settled


def test_a_disk_that_falls_behind_stops_decisions_until_it_has_caught_up() -> None:
    duty = Duty()
    duty.take(Output(persist=record(0)))
    for _ in range(order.OUTPUTS_MAX):
        assert duty.has_room
        duty.take(Output())
    assert not duty.has_room
    duty.done(Persisted())
    assert duty.has_room


# --- Chunks, readers and drops ---------------------------------------------------------------


@pytest.mark.parametrize("step", [SERVE, VALIDATE])
def test_serving_and_work_wait_for_the_chunks_concerned(step: ServeChunk | Validate) -> None:
    duty = Duty()
    sends = (step,) if isinstance(step, ServeChunk) else ()
    works = (step,) if isinstance(step, Validate) else ()
    assert duty.take(Output(store=(FIRST,), send=(HELLO,))) == [HELLO, FIRST]
    assert duty.take(Output(send=sends, work=works)) == []
    assert not duty.settled or isinstance(step, Validate)
    assert duty.done(Stored(OTHERS.digest, 0)) == [step]


def acknowledged(duty: Duty) -> None:
    """Another member's update is in place, and its sync, for which the ack waits, has begun."""
    assert duty.take(Output(store=(FIRST,))) == [FIRST]
    assert duty.take(Output(send=(ACK,))) == []
    assert duty.done(Stored(OTHERS.digest, 0)) == [SyncBlob(OTHERS.digest)]
    assert not duty.settled


def test_an_update_is_acknowledged_once_it_is_synced() -> None:
    duty = Duty()
    acknowledged(duty)
    assert duty.take(Output(send=(SERVE,), work=(VALIDATE,))) == [SERVE, VALIDATE]  # neither waits
    assert duty.done(Synced(OTHERS.digest)) == [ACK]
    assert duty.take(Output(send=(ACK,))) == [ACK]  # its author asks again
    assert duty.settled


def test_an_update_of_an_earlier_process_is_synced_before_it_is_acknowledged_again() -> None:
    duty = Duty()  # knows nothing about the update's blob
    assert duty.take(Output(send=(ACK,))) == [SyncBlob(OTHERS.digest)]
    assert duty.take(Output(send=(ACK,))) == []
    assert duty.done(Synced(OTHERS.digest)) == [ACK]


def test_an_update_that_is_written_to_during_its_sync_is_synced_again_before_its_ack() -> None:
    duty = Duty()
    acknowledged(duty)
    duty.take(Output(store=(SECOND,)))
    duty.done(Stored(OTHERS.digest, 1))
    assert duty.done(Synced(OTHERS.digest)) == [SyncBlob(OTHERS.digest)]
    assert duty.done(Synced(OTHERS.digest)) == [ACK]


def test_an_update_whose_sync_fails_is_not_acknowledged_until_it_is_fetched_again() -> None:
    duty = Duty()
    acknowledged(duty)
    lost = SyncFailed(OTHERS.digest, "an I/O error")
    assert duty.done(lost) == [DropBlob(OTHERS.digest)]
    assert duty.take(Output(send=(ACK,))) == []  # decided before the participant knows
    assert duty.done(Dropped(OTHERS.digest)) == [Deliver(BlobLost(OTHERS.digest))]
    assert duty.settled
    acknowledged(duty)
    assert duty.done(Synced(OTHERS.digest)) == [ACK]


def test_an_update_fetched_again_is_acknowledged_although_work_still_reads_the_lost_copy() -> None:
    duty = Duty()
    acknowledged(duty)
    assert duty.take(Output(work=(VALIDATE,))) == [VALIDATE]
    assert duty.done(SyncFailed(OTHERS.digest, "an I/O error")) == [DropBlob(OTHERS.digest)]
    duty.done(Dropped(OTHERS.digest))
    duty.take(Output(store=(FIRST,), send=(ACK,)))
    duty.done(Stored(OTHERS.digest, 0))
    validated = Validated(OTHERS.digest, None)
    assert duty.done(Worked(VALIDATE, validated)) == [
        SyncBlob(OTHERS.digest),
        Deliver(validated),
    ]
    assert duty.done(Synced(OTHERS.digest)) == [ACK]


def test_a_chunk_is_served_while_another_of_its_blob_is_written() -> None:
    duty = Duty()
    duty.take(Output(store=(FIRST, SECOND)))
    duty.done(Stored(OTHERS.digest, 0))
    assert duty.take(Output(send=(SERVE,))) == [SERVE]


def test_a_blob_is_dropped_after_the_work_that_reads_it() -> None:
    duty = Duty()
    duty.take(Output(work=(VALIDATE,)))
    assert duty.take(Output(drop=(OTHERS.digest,))) == []
    validated = Validated(OTHERS.digest, None)
    assert duty.done(Worked(VALIDATE, validated)) == [Deliver(validated), DropBlob(OTHERS.digest)]


def test_a_base_is_dropped_after_the_participant_has_heard_of_the_update_trained_from_it() -> None:
    duty = Duty()
    assert trained(duty) == [SyncBlob(MODEL.digest), SyncBlob(UPDATE.digest)]
    assert duty.take(Output(drop=(MODEL.digest,))) == []
    assert duty.done(Synced(MODEL.digest)) == []
    assert duty.done(Synced(UPDATE.digest)) == [Deliver(TRAINED), DropBlob(MODEL.digest)]


def test_a_blob_is_written_again_only_after_it_was_dropped() -> None:
    duty = Duty()
    assert duty.take(Output(drop=(OTHERS.digest,))) == [DropBlob(OTHERS.digest)]
    assert duty.take(Output(store=(FIRST,), work=(VALIDATE,))) == []
    assert duty.done(Dropped(OTHERS.digest)) == [FIRST]
    assert duty.done(Stored(OTHERS.digest, 0)) == [VALIDATE]


def test_a_blob_that_is_wanted_again_before_its_drop_is_kept() -> None:
    duty = Duty()
    duty.take(Output(work=(VALIDATE,)))
    duty.take(Output(drop=(OTHERS.digest,)))
    assert duty.take(Output(store=(FIRST,))) == [FIRST]
    duty.done(Stored(OTHERS.digest, 0))
    validated = Validated(OTHERS.digest, None)
    assert duty.done(Worked(VALIDATE, validated)) == [Deliver(validated)]


def test_a_blob_is_not_dropped_while_a_result_takes_its_place() -> None:
    duty = Duty()
    duty.take(Output(work=(TRAIN,)))
    assert duty.done(Worked(TRAIN, TRAINED)) == [PlaceBlob(UPDATE)]
    assert duty.take(Output(drop=(UPDATE.digest,))) == []
    assert duty.done(NotPlaced(UPDATE.digest, "no such file")) == [
        Deliver(WorkFailed(TRAIN, "no such file")),
        DropBlob(UPDATE.digest),
    ]


def test_chunks_that_are_not_on_disk_yet_are_counted() -> None:
    duty = Duty()
    chunks = [StoreChunk(OTHERS, index, b"") for index in range(order.CHUNKS_UNDER_WAY_MAX)]
    for chunk in chunks:
        assert duty.has_room_for_chunks
        duty.take(Output(store=(chunk,)))
    assert not duty.has_room_for_chunks
    duty.done(Stored(OTHERS.digest, 0))
    assert duty.has_room_for_chunks


def test_chunks_that_wait_for_a_drop_are_counted_too() -> None:
    duty = Duty()
    assert duty.take(Output(drop=(OTHERS.digest,))) == [DropBlob(OTHERS.digest)]
    chunks = [StoreChunk(OTHERS, index, b"") for index in range(order.CHUNKS_UNDER_WAY_MAX)]
    assert duty.take(Output(store=tuple(chunks))) == []
    assert not duty.has_room_for_chunks

    assert duty.done(Dropped(OTHERS.digest)) == chunks
    assert not duty.has_room_for_chunks


# --- Results ---------------------------------------------------------------------------------


def test_an_aggregate_is_in_place_before_it_is_used_and_synced_while_training_runs() -> None:
    duty = Duty()
    placed_model(duty)
    assert duty.take(Output(work=(TRAIN,))) == [TRAIN]


@pytest.mark.parametrize("base_first", [True, False])
def test_an_update_is_offered_once_it_and_the_model_it_was_trained_from_are_synced(
    base_first: bool,
) -> None:
    duty = Duty()
    placed_model(duty)
    assert trained(duty) == [SyncBlob(UPDATE.digest)]  # that of the model is under way
    syncs = [Synced(MODEL.digest), Synced(UPDATE.digest)]
    first, last = syncs if base_first else reversed(syncs)
    assert duty.done(first) == []
    assert duty.done(last) == [Deliver(TRAINED)]


def test_a_model_of_an_earlier_process_or_of_a_peer_is_synced_before_an_update_is_offered() -> None:
    duty = Duty()  # knows nothing about the model's blob
    assert trained(duty) == [SyncBlob(MODEL.digest), SyncBlob(UPDATE.digest)]


def test_a_model_is_synced_again_after_one_of_its_chunks_was_fetched_back() -> None:
    duty = Duty()
    placed_model(duty)
    duty.done(Synced(MODEL.digest))
    duty.take(Output(store=(StoreChunk(MODEL, 0, b"x"),)))
    duty.done(Stored(MODEL.digest, 0))
    assert trained(duty) == [SyncBlob(MODEL.digest), SyncBlob(UPDATE.digest)]


def test_after_a_failed_sync_no_update_is_offered_and_the_blob_is_fetched_again() -> None:
    duty = Duty()
    placed_model(duty)
    assert duty.take(Output(work=(TRAIN,))) == [TRAIN]
    # At once, though training still reads it.
    assert duty.done(SyncFailed(MODEL.digest, "an I/O error")) == [DropBlob(MODEL.digest)]
    assert duty.done(Dropped(MODEL.digest)) == [Deliver(BlobLost(MODEL.digest))]
    assert duty.take(Output(store=(StoreChunk(MODEL, 0, b"x"),))) == [StoreChunk(MODEL, 0, b"x")]
    assert duty.done(Worked(TRAIN, TRAINED)) == [PlaceBlob(UPDATE)]
    assert duty.done(Placed(UPDATE.digest)) == [
        Deliver(WorkFailed(TRAIN, "an I/O error", UPDATE.digest))
    ]


def test_a_blob_that_was_fetched_again_after_a_failed_sync_is_synced_anew() -> None:
    duty = Duty()
    placed_model(duty)
    assert duty.done(SyncFailed(MODEL.digest, "an I/O error")) == [DropBlob(MODEL.digest)]
    assert duty.take(Output(store=(StoreChunk(MODEL, 0, b"x"),))) == []  # not into the old file
    assert duty.done(Dropped(MODEL.digest)) == [
        Deliver(BlobLost(MODEL.digest)),
        StoreChunk(MODEL, 0, b"x"),
    ]
    duty.done(Stored(MODEL.digest, 0))
    assert trained(duty) == [SyncBlob(MODEL.digest), SyncBlob(UPDATE.digest)]


def test_an_update_whose_own_sync_fails_is_not_offered() -> None:
    duty = Duty()
    trained(duty)
    duty.done(Synced(MODEL.digest))
    assert duty.done(SyncFailed(UPDATE.digest, "an I/O error")) == [
        Deliver(WorkFailed(TRAIN, "an I/O error", UPDATE.digest)),
        DropBlob(UPDATE.digest),
    ]


def test_a_result_that_cannot_be_placed_is_failed_work() -> None:
    duty = Duty()
    duty.take(Output(work=(TRAIN,)))
    duty.done(Worked(TRAIN, TRAINED))
    failed = Deliver(WorkFailed(TRAIN, "no such file"))
    assert duty.done(NotPlaced(UPDATE.digest, "no such file")) == [failed]
    assert duty.take(Output(drop=(MODEL.digest,))) == [DropBlob(MODEL.digest)]  # nothing reads it


# --- Every interleaving ------------------------------------------------------------------------


class Disk:
    """The simplest disk that can tell whether an action came too early."""

    def __init__(self) -> None:
        self.records: list[Persist] = []
        self.chunks: set[tuple[Digest, int]] = {(MODEL.digest, 0), (MODEL.digest, 1)}
        self.synced: set[Digest] = set()
        self.reading: list[Digest] = []

    def whole(self, digest: Digest) -> bool:
        return {(digest, 0), (digest, 1)} <= self.chunks

    def begin(self, action: Action) -> Completion | None:
        """Checks that the action may begin; returns what ends it."""
        match action:
            case WriteRecords():
                return Persisted()
            case StoreChunk(manifest=manifest, index=index):
                return Stored(manifest.digest, index)
            case Validate() | Train():
                assert all(map(self.whole, inputs_of(action)))
                self.reading.extend(inputs_of(action))
                done = TRAINED if isinstance(action, Train) else Validated(OTHERS.digest, None)
                return Worked(action, done)
            case PlaceBlob(manifest=manifest):
                return Placed(manifest.digest)
            case SyncBlob(digest=digest):
                assert self.whole(digest)
                return Synced(digest)
            case DropBlob(digest=digest):
                assert digest not in self.reading
                return Dropped(digest)
            case ServeChunk(digest=digest, index=index):
                assert (digest, index) in self.chunks
            case Envelope(message=StoreAck(digest=digest)):
                assert digest in self.synced
                assert record(2) in self.records
            case Envelope():
                assert record(1) in self.records
            case Deliver(event=event):
                if event == TRAINED:
                    assert {UPDATE.digest, MODEL.digest} <= self.synced
        return None

    def end(self, completion: Completion, write: Action) -> None:
        match completion:
            case Persisted():
                assert isinstance(write, WriteRecords)
                self.records.extend(write.persists)
            case Stored(digest=digest, index=index):
                self.chunks.add((digest, index))
                self.synced.discard(digest)
            case Placed(digest=digest):
                self.chunks.update({(digest, 0), (digest, 1)})
            case Synced(digest=digest):
                self.synced.add(digest)
            case Dropped(digest=digest):
                self.chunks -= {(digest, 0), (digest, 1)}
            case Worked(work=work):
                for digest in inputs_of(work):
                    self.reading.remove(digest)


# A member's update is fetched, checked, acknowledged, served, dropped and fetched once more, while
# this node trains.
DECIDED = (
    Output(work=(TRAIN,)),
    Output(persist=record(1), store=(FIRST,), send=(HELLO,)),
    Output(store=(SECOND,), work=(VALIDATE,)),
    Output(persist=record(2), send=(ACK, SERVE)),
    Output(drop=(OTHERS.digest, MODEL.digest)),
    Output(store=(FIRST,), send=(SERVE,)),
)


class World:
    """One duty on one disk, with the writes that are under way."""

    def __init__(self) -> None:
        self.duty, self.disk = Duty(), Disk()
        self.decided = 0
        self.under_way: list[tuple[Completion, Action]] = []
        self.begun: list[str] = []

    def choices(self) -> int:
        return len(self.under_way) + (self.decided < len(DECIDED))

    def choose(self, choice: int) -> None:
        if choice < len(self.under_way):
            completion, action = self.under_way.pop(choice)
            self.disk.end(completion, action)
            self._begin(self.duty.done(completion))
        else:
            self.decided += 1
            self._begin(self.duty.take(DECIDED[self.decided - 1]))

    def _begin(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self.begun.append(type(action).__name__)
            completion = self.disk.begin(action)
            if completion is not None:
                self.under_way.append((completion, action))


def every_end(world: World, seen: set[bytes]) -> Iterator[World]:
    """Every order in which the writes can end and outputs can arrive."""
    if not world.choices():
        yield world
    for choice in range(world.choices()):
        after = deepcopy(world)
        after.choose(choice)
        state = repr((after.decided, after.under_way, sorted(after.begun))).encode()
        if state not in seen:
            seen.add(state)
            yield from every_end(after, seen)


def test_in_every_interleaving_nothing_comes_too_early_and_everything_is_done() -> None:
    seen: set[bytes] = set()
    ends = list(every_end(World(), seen))
    assert len(seen) > 500
    for end in ends:
        assert end.duty.settled
        counts = {kind: end.begun.count(kind) for kind in ("Train", "Validate", "Deliver")}
        assert counts == {"Train": 1, "Validate": 1, "Deliver": 2}
        assert end.begun.count("Envelope") == 2
        assert end.begun.count("ServeChunk") in (1, 2)  # a request that still waits answers both
        assert not end.disk.whole(MODEL.digest)  # dropped in the end
        assert (OTHERS.digest, 0) in end.disk.chunks  # fetched again
