"""Federated learning with a server (McMahan et al., AISTATS 2017): the paper's FL.

The server, seat n, does not train. In each round every client sends its update and the server sends
the new model to every client: 2nM bytes. Updates are averaged by the samples that each client
claims, or merged by another rule of aggregation/ (`multi_krum` is robust, but all must still trust
the server).

Left out: client sampling (every silo takes part), secure aggregation, a second server. The initial
weights are an agreed file, as in DeFL, so the first model is not sent; the last one is.
"""

from msgspec import Struct

from defl.committee import Federation
from defl.errors import WrongAuthor
from defl.fields import ARound
from defl.ids import NodeId, Round
from defl.lab.baselines.frames import Frames, frames_for
from defl.lab.baselines.machine import (
    ASamples,
    Contribution,
    Duties,
    Event,
    Machine,
    Merge,
    Message,
    NotTrained,
    SeatEnvelope,
    SeatLearner,
    SeatModelReady,
    SeatOutput,
    SeatReceived,
    SeatStart,
    SeatTrained,
    Store,
    checked_model,
    checked_update,
    merge_of,
    model_payload,
    update_payload,
)
from defl.output import Tick
from defl.schema import Row

# Beyond its payload a message has a tag, two integers and a length.
MESSAGE_BYTES_AROUND = 64


class FlProfile(Struct, frozen=True, forbid_unknown_fields=True, tag="fl"):
    # The server then continues without the missing clients.
    round_timeout_s: float = 600.0


class Update(Message, frozen=True, tag=1):
    round: ARound
    samples: ASamples
    payload: bytes

    @property
    def weights_bytes(self) -> int:
        return len(self.payload)


class FlModel(Message, frozen=True, tag=2):
    round: ARound
    payload: bytes

    @property
    def weights_bytes(self) -> int:
        return len(self.payload)


def frames_of(federation: Federation) -> Frames:
    return frames_for(federation, Update | FlModel, bytes_around=MESSAGE_BYTES_AROUND)


class FlClient:
    def __init__(self, federation: Federation, initial: Row) -> None:
        self._federation = federation
        self._server = NodeId(federation.committee.size)
        self._learner = SeatLearner(federation.rounds, initial)

    @property
    def finished(self) -> bool:
        return self._learner.done

    def handle(self, event: Event, now: float) -> SeatOutput:  # noqa: ARG002 - a client has no timer
        duties = Duties.none()
        match event:
            case SeatStart():
                duties.train = self._learner.begin()
            case SeatTrained() | NotTrained():
                if self._learner.trained(event, duties) and isinstance(event, SeatTrained):
                    payload = update_payload(self._federation, event.row, self._learner.model)
                    update = Update(event.round, event.samples, payload)
                    duties.send.append(SeatEnvelope((self._server,), update))
            case SeatReceived(peer=peer, message=FlModel(round=round_, payload=payload)):
                if peer != self._server:
                    raise WrongAuthor(f"{peer} is not the server")
                if round_ > self._learner.round:
                    row = checked_model(self._federation, payload)
                    duties.store.append(Store("model", payload, len(payload)))
                    self._learner.learn(round_, row, duties)
            case _:
                pass
        return duties.output()


class FlServer:
    def __init__(
        self,
        federation: Federation,
        initial: Row,
        profile: FlProfile,
        merge: Merge | None = None,
    ) -> None:
        self._federation = federation
        self._profile = profile
        self._merge = merge or merge_of(federation, by_samples=True)
        self._clients = federation.committee.members
        # A mean needs one update; robust rules assume at most f faulty among n - f.
        mean = federation.aggregation == "fed_avg"
        self._updates_min = 1 if mean else federation.committee.quorum
        self._round = Round(0)
        self._model = initial
        self._updates: dict[NodeId, Contribution] = {}
        self._deadline = 0.0

    @property
    def finished(self) -> bool:
        return self._round >= self._federation.rounds

    def handle(self, event: Event, now: float) -> SeatOutput:
        duties = Duties.none()
        match event:
            case SeatStart():
                self._deadline = now + self._profile.round_timeout_s
            case SeatReceived(peer=peer, message=Update() as update):
                self._take(peer, update)
            case _:
                pass
        due = isinstance(event, Tick) and now >= self._deadline
        enough = len(self._updates) >= self._updates_min
        if len(self._updates) == len(self._clients) or (enough and due):
            self._close(duties, now)
        elif due:
            self._deadline = now + self._profile.round_timeout_s
        return duties.output(None if self.finished else self._deadline)

    def _take(self, peer: NodeId, update: Update) -> None:
        if peer not in self._clients:
            raise WrongAuthor(f"{peer} is no client")
        if update.round != self._round + 1 or peer in self._updates or self.finished:
            return  # late, or sent twice
        row = checked_update(self._federation, update.payload, self._model)
        self._updates[peer] = Contribution(peer, row, update.samples)

    def _close(self, duties: Duties, now: float) -> None:
        updates = [self._updates[author] for author in sorted(self._updates)]
        self._round = Round(self._round + 1)
        self._model = self._merge(updates, self._model, self._round)
        self._updates.clear()
        self._deadline = now + self._profile.round_timeout_s
        payload = model_payload(self._federation, self._model)
        duties.store.append(Store("model", payload, len(payload)))
        duties.send.append(SeatEnvelope(self._clients, FlModel(self._round, payload)))
        duties.models.append(SeatModelReady(self._round, self._model))


def machine_of(
    federation: Federation,
    seat: NodeId,
    initial: Row,
    profile: FlProfile | None = None,
    merge: Merge | None = None,
) -> Machine:
    """A node's client, or the server in the seat after the last node."""
    if seat < federation.committee.size:
        return FlClient(federation, initial)
    return FlServer(federation, initial, profile or FlProfile(), merge)
