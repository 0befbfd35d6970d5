"""Baselines on a virtual clock: real messages, real training, exact counts of bytes, no sockets.

One event heap and one seed for all randomness, as in sim/. Frames are encoded and counted as the
transport would count them; a killed seat neither sends nor receives.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from defl.errors import PeerFault
from defl.ids import NodeId, Round
from defl.lab.baselines.frames import Frames, lane_of
from defl.lab.baselines.machine import (
    Event,
    Machine,
    Message,
    NotTrained,
    SeatEnvelope,
    SeatModelReady,
    SeatOutput,
    SeatReceived,
    SeatStart,
    SeatTrain,
    SeatTrained,
)
from defl.node.net.framing import HEADER_BYTES, Lane
from defl.output import Tick
from defl.schema import Row
from defl.sim.conditions import SLOWNESS, Conditions
from defl.sim.network import Network

# Without a new model for this long on the virtual clock, all timeouts have passed: it is stuck.
STUCK_AFTER_S = 6 * 3600.0

# A row and the round that the update is for; None if there is no update.
Training = Callable[[Row, Round], tuple[Row, int] | None]


@dataclass(slots=True)
class VirtualTraffic:
    """Bytes that one seat sent and received: frames with headers by lane, and weights alone."""

    sent: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(Lane, 0))
    received: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(Lane, 0))
    weights_sent: int = 0
    weights_received: int = 0


@dataclass(slots=True)
class Seat:
    id: NodeId
    machine: Machine
    training: Training | None
    alive: bool = True
    tick_at: float | None = None
    stored: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> bytes, of weights
    traffic: VirtualTraffic = field(default_factory=VirtualTraffic)

    @property
    def stored_bytes(self) -> int:
        return sum(size for size, _ in self.stored.values())

    @property
    def weights_stored(self) -> int:
        return sum(weights for _, weights in self.stored.values())


class Virtual:
    def __init__(
        self,
        machines: Sequence[Machine],
        frames: Frames,
        trainings: Mapping[NodeId, Training],
        *,
        seed: int,
        conditions: Conditions = Conditions(),  # noqa: B008 - frozen
        on_model: Callable[[NodeId, SeatModelReady], None] = lambda _seat, _model: None,
    ) -> None:
        self.now = 0.0
        self.refused = 0  # messages that broke the protocol
        self.seats = [
            Seat(NodeId(i), machine, trainings.get(NodeId(i))) for i, machine in enumerate(machines)
        ]
        self._frames = frames
        self._conditions = conditions
        self._on_model = on_model
        self._rng = random.Random(seed)  # noqa: S311 - a simulation repeats
        self._network = Network(conditions, self._rng, is_calm=lambda: True)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._progress_at = 0.0
        for seat in self.seats:
            self._later(0.0, seat, SeatStart())

    def kill(self, seat: NodeId) -> None:
        self.seats[seat].alive = False

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Run until every living seat is finished, `until` holds, or the run is stuck."""
        while self._heap and not self._finished() and not until():
            self.now, _, action = heappop(self._heap)
            if self.now > self._progress_at + STUCK_AFTER_S:
                return
            action()

    def drain(self) -> None:
        """Deliver everything in flight, so that all sent bytes are received."""
        while self._heap:
            self.now, _, action = heappop(self._heap)
            if self.now > self._progress_at + STUCK_AFTER_S:
                return
            action()

    def _finished(self) -> bool:
        return all(seat.machine.finished for seat in self.seats if seat.alive)

    # --- One seat --------------------------------------------------------------------------

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._heap, (when, self._sequence, action))

    def _later(self, when: float, seat: Seat, event: Event) -> None:
        self._at(when, lambda: self._handle(seat, event))

    def _handle(self, seat: Seat, event: Event) -> None:
        if not seat.alive:
            return
        try:
            output = seat.machine.handle(event, self.now)
        except PeerFault:
            self.refused += 1
            return
        self._perform(seat, output)

    def _perform(self, seat: Seat, output: SeatOutput) -> None:
        for store in output.store:
            seat.stored[store.name] = (len(store.data), store.weights_bytes)
        for envelope in output.send:
            self._send(seat, envelope)
        for model in output.models:
            self._progress_at = self.now
            self._on_model(seat.id, model)
        if output.train is not None:
            self._train(seat, output.train)
        self._set_tick(seat, output.wake_at)

    def _set_tick(self, seat: Seat, wake_at: float | None) -> None:
        if wake_at == seat.tick_at:
            return
        seat.tick_at = wake_at
        if wake_at is None:
            return

        def tick() -> None:
            if seat.tick_at == wake_at:
                seat.tick_at = None
                self._handle(seat, Tick())

        self._at(max(self.now, wake_at), tick)

    def _train(self, seat: Seat, train: SeatTrain) -> None:
        takes = self._rng.expovariate(1.0) * self._conditions.work_s
        if seat.id in self._conditions.slow:
            takes *= SLOWNESS

        def done() -> None:
            if not seat.alive or seat.training is None:
                return
            update = seat.training(train.base, train.round)
            if update is None:
                self._handle(seat, NotTrained(train.round))
            else:
                self._handle(seat, SeatTrained(train.round, *update))

        self._at(self.now + takes, done)

    # --- The wire --------------------------------------------------------------------------

    def _send(self, seat: Seat, envelope: SeatEnvelope) -> None:
        message = envelope.message
        lane = lane_of(message)
        parts = self._frames.encode(message, 0)
        size = sum(len(part) + HEADER_BYTES for part in parts)
        received = self._frames.decode(b"".join(self._frames.part(part).data for part in parts))
        for target in envelope.to:
            seat.traffic.sent[lane] += size
            seat.traffic.weights_sent += message.weights_bytes
            for when in self._network.arrivals(
                seat.id, target, size, heavy=lane is Lane.WEIGHTS, now=self.now
            ):
                self._deliver(when, seat.id, self.seats[target], received, size)

    def _deliver(
        self, when: float, source: NodeId, seat: Seat, message: Message, size: int
    ) -> None:
        def deliver() -> None:
            if not seat.alive:
                return
            seat.traffic.received[lane_of(message)] += size
            seat.traffic.weights_received += message.weights_bytes
            self._handle(seat, SeatReceived(source, message))

        self._at(when, deliver)
