"""The order of duty when results are equal, writes meet syncs, syncs fail and peers repeat."""

from collections import Counter
from random import Random

import pytest

from defl.duty import (
    SERVES_WAITING_MAX,
    Action,
    Completion,
    Deliver,
    DropBlob,
    Dropped,
    Duty,
    Persisted,
    PlaceBlob,
    Placed,
    Stored,
    SyncBlob,
    Synced,
    SyncFailed,
    Worked,
    WriteRecords,
)
from defl.ids import NO_DIGEST, Digest, NodeId, Round
from defl.messages import Manifest, StoreAck
from defl.output import (
    Aggregate,
    Aggregated,
    BlobLost,
    Envelope,
    Event,
    Output,
    Persist,
    ServeChunk,
    StoreChunk,
    Train,
    Trained,
    Validate,
    Validated,
    Work,
    WorkFailed,
)
from defl.schema import Codec
from defl.work import inputs_of


def manifest_of(number: int, chunks: int = 2, base: Digest = NO_DIGEST) -> Manifest:
    names = tuple(Digest(bytes([number, index]) * 16) for index in range(chunks))
    return Manifest(Digest(bytes(32)), Codec.FP32, base, chunks, names)


MODEL = manifest_of(1)
UPDATE = manifest_of(2, base=MODEL.digest)
CHUNK = StoreChunk(MODEL, 0, b"x")
PEER, OTHER_PEER = NodeId(2), NodeId(3)
TRAIN = Train(Round(3), MODEL.digest)
TRAINED = Trained(Round(3), UPDATE)
FIRST, SECOND = (Aggregate(Round(r), NO_DIGEST, (), Digest(bytes(32)), 1) for r in (1, 2))


def train(duty: Duty) -> list[Action]:
    """An update is trained and in place; returns what may be done then."""
    duty.take(Output(work=(TRAIN,)))
    duty.done(Worked(TRAIN, TRAINED))
    return duty.done(Placed(UPDATE.digest))


# --- Equal results ---------------------------------------------------------------------------


def test_two_rounds_with_the_same_model_are_placed_one_after_the_other() -> None:
    """Clients that change nothing make the same model in each round."""
    duty = Duty()
    duty.take(Output(work=(FIRST, SECOND)))
    first, second = Aggregated(Round(1), MODEL), Aggregated(Round(2), MODEL)
    assert duty.done(Worked(FIRST, first)) == [PlaceBlob(MODEL)]
    assert duty.done(Worked(SECOND, second)) == []
    actions = duty.done(Placed(MODEL.digest))
    assert actions == [Deliver(first), SyncBlob(MODEL.digest), PlaceBlob(MODEL)]
    assert duty.done(Placed(MODEL.digest)) == [Deliver(second)]


def test_an_update_that_is_trained_again_before_its_first_copy_is_dropped_is_placed() -> None:
    duty = Duty()
    train(duty)
    equal = StoreChunk(UPDATE, 0, b"x")  # another member trained the same update
    assert duty.take(Output(store=(equal,))) == [equal]
    failed = WorkFailed(TRAIN, "an I/O error", UPDATE.digest)
    assert duty.done(SyncFailed(UPDATE.digest, "an I/O error")) == [Deliver(failed)]
    assert duty.take(Output(work=(TRAIN,))) == [TRAIN]
    assert duty.done(Worked(TRAIN, TRAINED)) == []
    assert duty.done(Stored(UPDATE.digest, 0)) == [DropBlob(UPDATE.digest)]
    lost = Deliver(BlobLost(UPDATE.digest))
    assert duty.done(Dropped(UPDATE.digest)) == [lost, PlaceBlob(UPDATE)]


# --- Writes during a sync --------------------------------------------------------------------


def test_a_model_that_is_written_to_during_its_sync_is_synced_again() -> None:
    duty = Duty()
    train(duty)
    duty.take(Output(store=(CHUNK,)))
    duty.done(Stored(MODEL.digest, 0))
    assert duty.done(Synced(UPDATE.digest)) == []
    assert duty.done(Synced(MODEL.digest)) == [SyncBlob(MODEL.digest)]
    assert duty.done(Synced(MODEL.digest)) == [Deliver(TRAINED)]


def test_a_model_that_is_written_to_after_its_sync_is_synced_again() -> None:
    duty = Duty()
    train(duty)
    duty.done(Synced(MODEL.digest))
    duty.take(Output(store=(CHUNK,)))
    duty.done(Stored(MODEL.digest, 0))
    assert duty.done(Synced(UPDATE.digest)) == [SyncBlob(MODEL.digest)]
    assert duty.done(Synced(MODEL.digest)) == [Deliver(TRAINED)]


# --- Peers that repeat themselves ------------------------------------------------------------


def test_requests_repeated_during_a_write_are_answered_once() -> None:
    duty = Duty()
    serve = ServeChunk(PEER, MODEL.digest, 0)
    ack = StoreAck(Round(1), PEER, MODEL.digest, NO_DIGEST, 2, NodeId(0), b"signature")
    acknowledge = Envelope((PEER,), ack)
    duty.take(Output(store=(CHUNK,)))
    for _ in range(3):
        assert duty.take(Output(send=(serve, acknowledge))) == []
    assert duty.done(Stored(MODEL.digest, 0)) == [serve, SyncBlob(MODEL.digest)]
    for _ in range(3):
        assert duty.take(Output(send=(acknowledge,))) == []
    assert duty.done(Synced(MODEL.digest)) == [acknowledge]


def test_one_peers_requests_that_wait_for_the_disk_are_bounded() -> None:
    many = manifest_of(3, chunks=SERVES_WAITING_MAX + 4)
    indexes = range(len(many.chunks))
    duty = Duty()
    duty.take(Output(store=tuple(StoreChunk(many, index, b"x") for index in indexes)))
    for peer in (PEER, OTHER_PEER):
        duty.take(Output(send=tuple(ServeChunk(peer, many.digest, index) for index in indexes)))
    served = [action for index in indexes for action in duty.done(Stored(many.digest, index))]
    to = Counter(action.to for action in served if isinstance(action, ServeChunk))
    assert to == {PEER: SERVES_WAITING_MAX, OTHER_PEER: SERVES_WAITING_MAX}


# --- At random -------------------------------------------------------------------------------

MODELS = (MODEL, manifest_of(4))
UPDATES = (UPDATE, manifest_of(5, base=MODEL.digest))
BLOBS = {manifest.digest: manifest for manifest in MODELS + UPDATES}


class Machine:
    """A duty, its disk, and a participant that makes random decisions. Few blobs, so that results
    are often equal; completions arrive in any order."""

    def __init__(self, seed: int, failures: float) -> None:
        self.rng = Random(seed)  # noqa: S311  (not a secret)
        self.duty = Duty()
        self.sound = not failures
        self.failures = failures  # the share of syncs that fail
        self.under_way: list[tuple[Action, int]] = []  # with the version of the blob
        self.events: list[Event] = []
        self.held: dict[Digest, set[int]] = {}  # what the participant believes to hold
        self.requested: set[Work] = set()
        self.disk: dict[Digest, set[int]] = {digest: set() for digest in BLOBS}
        self.version: Counter[Digest] = Counter()
        self.synced: dict[Digest, int] = {}  # the version that survives a power cut
        self.broken: set[Digest] = set()  # files whose sync failed

    def run(self, steps: int) -> None:
        for _ in range(steps):
            choice = self.rng.random()
            if choice < 0.45 and self.under_way:
                self.end_one()
            elif choice < 0.6 and self.events:
                self.hear()
            elif self.duty.has_room:
                self.decide()
        self.failures = 0.0
        while self.under_way or self.events:
            if self.under_way:
                self.end_one()
            else:
                self.hear()

    # --- The driver and its disk

    def begin(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Deliver(event=event):
                    self.check_result(event)
                    self.events.append(event)
                case Envelope(message=StoreAck(digest=digest)):
                    assert self.synced[digest] == self.version[digest]
                case ServeChunk():
                    pass
                case SyncBlob(digest=digest):
                    self.under_way.append((action, self.version[digest]))
                case Validate() | Train() | Aggregate():
                    if self.sound:  # else the participant may not know yet that it is lost
                        assert all(len(self.disk[digest]) == 2 for digest in inputs_of(action))
                    self.under_way.append((action, 0))
                case _:
                    self.under_way.append((action, 0))

    def check_result(self, event: Event) -> None:
        if isinstance(event, Aggregated | Trained):
            assert len(self.disk[event.manifest.digest]) == 2
        if isinstance(event, Trained):
            for digest in (event.manifest.digest, MODEL.digest):
                assert self.synced[digest] == self.version[digest]

    def end_one(self) -> None:
        action, version = self.under_way.pop(self.rng.randrange(len(self.under_way)))
        self.begin(self.duty.done(self.end(action, version)))

    def end(self, action: Action, version: int) -> Completion:
        match action:
            case WriteRecords():
                return Persisted()
            case StoreChunk(manifest=manifest, index=index):
                self.write(manifest.digest, self.disk[manifest.digest] | {index})
                return Stored(manifest.digest, index)
            case PlaceBlob(manifest=manifest):
                self.broken.discard(manifest.digest)
                self.write(manifest.digest, {0, 1})
                return Placed(manifest.digest)
            case DropBlob(digest=digest):
                writes = [a.manifest for a, _ in self.under_way if isinstance(a, StoreChunk)]
                assert digest not in {manifest.digest for manifest in writes}
                self.broken.discard(digest)
                self.write(digest, set())
                return Dropped(digest)
            case SyncBlob(digest=digest):
                if self.rng.random() < self.failures:
                    self.broken.add(digest)
                    return SyncFailed(digest, "an I/O error")
                if digest not in self.broken:
                    self.synced[digest] = version
                return Synced(digest)
            case Validate(manifest=manifest):
                return Worked(action, Validated(manifest.digest, None))
            case Train(round=round_):
                return Worked(action, Trained(round_, self.rng.choice(UPDATES)))
            case Aggregate(round=round_):
                return Worked(action, Aggregated(round_, self.rng.choice(MODELS)))
        raise AssertionError(action)

    def write(self, digest: Digest, chunks: set[int]) -> None:
        if chunks != self.disk[digest] or len(chunks) == 2:
            self.version[digest] += 1
        self.disk[digest] = chunks

    # --- The participant

    def hear(self) -> None:
        event = self.events.pop(0)
        drop: tuple[Digest, ...] = ()
        match event:
            case (
                Aggregated(round=round_, manifest=manifest)
                | Trained(round=round_, manifest=manifest)
            ):
                self.requested = {w for w in self.requested if getattr(w, "round", 0) != round_}
                self.held[manifest.digest] = {0, 1}
            case Validated(digest=digest):
                self.requested.discard(Validate(BLOBS[digest]))
            case WorkFailed(work=work, made=made):
                self.requested.discard(work)
                if made is not None and made not in self.held:
                    drop = (made,)
            case BlobLost(digest=digest) if digest in self.held:
                self.held[digest] = set()
        self.take(Output(drop=drop))

    def decide(self) -> None:
        digest = self.rng.choice(list(BLOBS))
        manifest, held = BLOBS[digest], self.held.get(digest, set())
        missing = {0, 1} - held
        round_ = Round(self.rng.randrange(10**9))
        kinds = ("store", "store", "store", "serve", "check", "ack", "make", "drop")
        match self.rng.choice(kinds):
            case "store" if missing:
                index = self.rng.choice(sorted(missing))
                self.held.setdefault(digest, set()).add(index)
                self.take(Output(store=(StoreChunk(manifest, index, b"x"),)))
            case "serve" if held:
                self.take(Output(send=(ServeChunk(PEER, digest, min(held)),)))
            case "check" if not missing and Validate(manifest) not in self.requested:
                self.request(Validate(manifest))
            case "ack" if not missing:
                ack = StoreAck(round_, PEER, digest, NO_DIGEST, 2, NodeId(0), b"signature")
                self.take(Output(send=(Envelope((PEER,), ack),)))
            case "make" if len(self.held.get(MODEL.digest, ())) == 2:
                if all(isinstance(work, Validate) for work in self.requested):
                    self.request(Train(round_, MODEL.digest))
                else:
                    self.request(Aggregate(round_, MODEL.digest, (), digest, 1))
            case "drop" if held and all(isinstance(work, Validate) for work in self.requested):
                del self.held[digest]  # never what is being made: its round would be over
                self.take(Output(drop=(digest,)))

    def request(self, work: Work) -> None:
        self.requested.add(work)
        self.take(Output(work=(work,)))

    def take(self, output: Output) -> None:
        if self.rng.random() < 0.4:
            record = Persist(forget_round=Round(1))
            output = Output(record, output.store, output.send, work=output.work, drop=output.drop)
        self.begin(self.duty.take(output))


@pytest.mark.parametrize("failures", [0.0, 0.3], ids=["sound disk", "failing syncs"])
@pytest.mark.parametrize("seed", range(150))
def test_nothing_waits_for_ever_and_what_the_participant_holds_is_on_disk(
    seed: int, failures: float
) -> None:
    machine = Machine(seed, failures)
    machine.run(80)
    assert machine.duty.settled
    assert machine.requested == set()
    for digest, chunks in machine.held.items():
        assert chunks <= machine.disk[digest]
    for digest in BLOBS.keys() - machine.held.keys():
        assert machine.disk[digest] == set()
    # Nothing is kept for longer than it is needed.
    duty = machine.duty
    for left in (
        duty._waiting,
        duty._readers,
        duty._unplaced,
        duty._placing,
        duty._placed,
        duty._syncing,
        duty._acks,
        duty._lost,
        duty._dropped_early,
        duty._dropping,
    ):
        assert not left
    assert all(machine.synced[digest] == machine.version[digest] for digest in duty._synced)
