"""What all baselines share: a pure machine, its events and its output.

Each baseline is a set of machines, one per *seat*: seats 0 .. n-1 are the nodes; seat n, if there
is one, is the server (FL) or the ordering service (Swarm Learning). A machine has one entry,
`handle(event, now) -> SeatOutput`. virtual.py drives it on a virtual clock, process.py as a real
process over TLS, so the simulated code is the measured code. Facts (members, schema, rounds, codec,
aggregation rule) are those of a DeFL federation. The tick is DeFL's own; the other events and
outputs carry weights as rows instead of blobs and have types of their own.

All baselines leave out what DeFL has and the paper does not compare: a killed seat stays dead
(nothing is recovered from disk), and sequence numbers, not acknowledgements, detect losses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from defl.aggregation.fed_avg import fed_avg
from defl.aggregation.model import aggregate_model
from defl.committee import Federation
from defl.errors import BadBlob
from defl.ids import NodeId, Round, digest_of
from defl.output import Tick
from defl.pool.weights import FP32, Base, check_payload, decode, encode
from defl.schema import Row

# Upper bound on the number of samples that a client may claim: beyond any real data set.
SAMPLES_MAX = 2**32
# The metric with the number of samples that a client trained on; without it all weigh the same.
SAMPLES_METRIC = "samples"

ASamples = Annotated[int, Meta(ge=1, le=SAMPLES_MAX)]


class Message(Struct, frozen=True, array_like=True):
    """A message between seats; each kind knows how many bytes of weights it carries."""

    @property
    def weights_bytes(self) -> int:
        return 0


# --- Events --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeatStart:
    """All living seats are connected."""


@dataclass(frozen=True, slots=True)
class SeatReceived:
    peer: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class SeatTrained:
    round: Round  # the round that the update is for
    row: Row
    samples: int = 1


@dataclass(frozen=True, slots=True)
class NotTrained:
    """The client failed or diverged: this node has no update for the round."""

    round: Round


Event = SeatStart | Tick | SeatReceived | SeatTrained | NotTrained


# --- Output --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Store:
    """Bytes under a name, durable before anything is sent; the same name replaces them."""

    name: str
    data: bytes
    weights_bytes: int = 0  # the share of weights; the rest is metadata


@dataclass(frozen=True, slots=True)
class SeatEnvelope:
    to: tuple[NodeId, ...]
    message: Message


@dataclass(frozen=True, slots=True)
class SeatTrain:
    round: Round
    base: Row


@dataclass(frozen=True, slots=True)
class SeatModelReady:
    """This seat's model of a round."""

    round: Round
    row: Row


@dataclass(frozen=True, slots=True)
class SeatOutput:
    store: tuple[Store, ...] = ()
    send: tuple[SeatEnvelope, ...] = ()
    train: SeatTrain | None = None
    models: tuple[SeatModelReady, ...] = ()
    wake_at: float | None = None


class Machine(Protocol):
    @property
    def finished(self) -> bool:
        """It needs nothing more; it serves the others until it is stopped."""
        ...

    def handle(self, event: Event, now: float) -> SeatOutput:
        """After a PeerFault the message is dropped and the state is unchanged."""
        ...


@dataclass(slots=True)
class Duties:
    """Collects the output of one event."""

    store: list[Store]
    send: list[SeatEnvelope]
    models: list[SeatModelReady]
    train: SeatTrain | None = None

    @classmethod
    def none(cls) -> "Duties":
        return cls([], [], [])

    def output(self, wake_at: float | None = None) -> SeatOutput:
        return SeatOutput(
            tuple(self.store), tuple(self.send), self.train, tuple(self.models), wake_at
        )


# --- Learning ------------------------------------------------------------------------------


class SeatLearner:
    """The training side of every baseline: train from the newest model, once a round."""

    def __init__(self, rounds: int, initial: Row) -> None:
        self.round = Round(0)  # of the newest model
        self.model = initial
        self._rounds = rounds
        self._training: Round | None = None

    @property
    def done(self) -> bool:
        return self.round >= self._rounds

    def begin(self) -> SeatTrain | None:
        """Start training unless it is running or the last round is done."""
        if self.done or self._training is not None:
            return None
        self._training = Round(self.round + 1)
        return SeatTrain(self._training, self.model)

    def learn(self, round_: Round, row: Row, duties: Duties) -> None:
        self.round, self.model = round_, row
        duties.models.append(SeatModelReady(round_, row))
        duties.train = self.begin()

    def trained(self, event: SeatTrained | NotTrained, duties: Duties) -> bool:
        """Whether this is the open round's update; if it is too late, training restarts."""
        self._training = None
        if event.round != self.round + 1:
            duties.train = self.begin()
            return False
        return isinstance(event, SeatTrained)


@dataclass(frozen=True, slots=True)
class Contribution:
    author: NodeId
    row: Row
    samples: int = 1


# From a round's updates in member order, their base model and the round to the new model. A
# Byzantine server or leader is an honest machine with another merge.
Merge = Callable[[Sequence[Contribution], Row, Round], Row]


def merge_of(federation: Federation, *, by_samples: bool) -> Merge:
    """The federation's aggregation rule; `by_samples` weights the mean by samples."""

    def merge(updates: Sequence[Contribution], base: Row, round_: Round) -> Row:
        rows = [update.row for update in updates]
        authors = [update.author for update in updates]
        ties = ties_of(round_, authors)
        if federation.aggregation == "fed_avg":
            counts = [update.samples for update in updates] if by_samples else None
            return fed_avg(rows, base, 0, ties, counts=counts, count_max=SAMPLES_MAX).values
        return aggregate_model(
            federation.aggregation,
            federation.schema,
            rows,
            base,
            faults_max=federation.updates_faults_max,
            ties=ties,
            members=authors,
        ).values

    return merge


def ties_of(round_: Round, authors: Sequence[NodeId]) -> list[bytes]:
    return [digest_of(f"defl/lab/baselines/{round_}/{author}".encode()) for author in authors]


# --- Weights -------------------------------------------------------------------------------


def model_payload(federation: Federation, row: Row) -> bytes:
    return bytes(encode(row, federation.schema, FP32))


def checked_model(federation: Federation, payload: bytes) -> Row:
    """A peer's model, or a BadBlob."""
    check_payload(payload, federation.schema, FP32)
    return decode(payload, federation.schema, FP32)


# Only a mask follows the round, and baselines have none: cells.py refuses it.
NO_ROUND = Round(0)


def update_payload(federation: Federation, row: Row, base: Row) -> bytes:
    return bytes(encode(row, federation.schema, federation.codec, Base(base, NO_ROUND)))


def checked_update(federation: Federation, payload: bytes, base: Row) -> Row:
    """A peer's update, or a BadBlob."""
    check_payload(payload, federation.schema, federation.codec)
    row = decode(payload, federation.schema, federation.codec, Base(base, NO_ROUND))
    if row.size != federation.schema.values:
        raise BadBlob(f"{row.size} values, the schema has {federation.schema.values}")
    return row
