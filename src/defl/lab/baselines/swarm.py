"""Swarm Learning (Warnat-Herresthal et al., Nature 2021), as of its version 0.3 or with fail-over.

A ledger orders only metadata (ordering.py). When `peers_min` nodes are READY, the ledger's last
block designates one of them as leader, H(block || round) mod |READY|. The leader pulls the others'
models, merges them by the federation's rule (the mean; in later versions medians) and publishes the
result, which the others pull: 2(m-1)M bytes a round, half of them through the leader. No node
verifies the merge. Below `peers_min` the federation blocks.

With `fail_over` (later versions) nodes that see no merge in time send ALIVE. Once more than half of
the READY nodes have done so, a new leader is designated among them. Without `fail_over` a dead
leader stops the federation.

Left out: the licence server, the containers, real Ethereum, adaptive synchronisation intervals
(every round is merged).
"""

from msgspec import Struct

from defl.committee import Federation
from defl.crypto import Scheme, Signer
from defl.errors import BadBlob
from defl.fields import ADigest
from defl.ids import NO_DIGEST, Digest, NodeId, Round, digest_of
from defl.lab.baselines.frames import Frames, frames_for
from defl.lab.baselines.machine import (
    Contribution,
    Duties,
    Event,
    Machine,
    Merge,
    Message,
    NotTrained,
    SeatEnvelope,
    SeatLearner,
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
from defl.lab.baselines.ordering import LogBlock, Orderer, OrderingKind, OrderingReplica, Record
from defl.output import Tick
from defl.schema import Row

# Beyond its payload a message has a tag, a digest and a length; a block of the log is smaller.
MESSAGE_BYTES_AROUND = 1024


class SwarmProfile(Struct, frozen=True, forbid_unknown_fields=True, tag="swarm"):
    peers_min: int | None = None  # None: all n
    fail_over: bool = False
    leader_timeout_s: float = 60.0  # used with fail_over only


class WeightsRequest(Message, frozen=True, tag=3):
    digest: ADigest


class Weights(Message, frozen=True, tag=4):
    payload: bytes

    @property
    def weights_bytes(self) -> int:
        return len(self.payload)


def frames_of(federation: Federation) -> Frames:
    kinds = Record | LogBlock | WeightsRequest | Weights
    return frames_for(federation, kinds, bytes_around=MESSAGE_BYTES_AROUND)


def leader_of(block: Digest, round_: Round, ready: tuple[NodeId, ...]) -> NodeId:
    seed = digest_of(b"defl/swarm/leader" + block + round_.to_bytes(8, "big"))
    return ready[int.from_bytes(seed, "big") % len(ready)]


class Peer:
    """One node: executes the log and exchanges models accordingly."""

    def __init__(
        self,
        federation: Federation,
        me: NodeId,
        signer: Signer,
        scheme: Scheme,
        orderer_key: bytes,
        initial: Row,
        profile: SwarmProfile,
        merge: Merge | None = None,
    ) -> None:
        self._federation = federation
        self._me = me
        self._profile = profile
        self._merge = merge or merge_of(federation, by_samples=False)
        self._learner = SeatLearner(federation.rounds, initial)
        self._replica = OrderingReplica(federation, me, signer, scheme, orderer_key)
        size = federation.committee.size
        self._peers_min = size if profile.peers_min is None else profile.peers_min
        self._held: dict[Digest, bytes] = {}  # my update of the open round and the newest model
        # The log's state of the open round, the one after `_merged`.
        self._merged = Round(0)
        self._ready: dict[NodeId, Digest] = {}
        self._alive: set[NodeId] = set()
        self._attempt = 0
        self._leader: NodeId | None = None
        self._pulled_from: tuple[NodeId, ...] = ()
        self._done: set[NodeId] = set()
        # What this node is waiting for.
        self._rows: dict[NodeId, Row] = {}
        self._wanted: tuple[Round, Digest] | None = None  # the published model, not here yet
        self._asked = me
        self._deadline: float | None = None

    @property
    def finished(self) -> bool:
        return self._learner.done

    @property
    def leader(self) -> NodeId | None:
        """The leader of the open round, according to this node's log."""
        return self._leader

    def handle(self, event: Event, now: float) -> SeatOutput:
        duties = Duties.none()
        match event:
            case SeatStart():
                self._submit(OrderingKind.ENROLL, Round(0), duties)
                duties.train = self._learner.begin()
            case SeatTrained() | NotTrained():
                if self._learner.trained(event, duties) and isinstance(event, SeatTrained):
                    self._trained(event, duties)
            case SeatReceived(peer=peer, message=LogBlock() as block):
                for ready in self._replica.blocks(peer, block):
                    duties.store.append(self._replica.stored(ready))
                    self._execute(ready, duties, now)
            case SeatReceived(peer=peer, message=WeightsRequest(digest=digest)):
                if digest in self._held:
                    duties.send.append(SeatEnvelope((peer,), Weights(self._held[digest])))
            case SeatReceived(peer=peer, message=Weights(payload=payload)):
                self._take(peer, payload, duties)
            case Tick():
                if self._deadline is not None and now >= self._deadline:
                    self._on_timeout(duties, now)
            case _:
                pass
        return duties.output(self._deadline)

    # --- Sending ----------------------------------------------------------------------------

    def _submit(
        self,
        kind: OrderingKind,
        round_: Round,
        duties: Duties,
        digest: Digest = NO_DIGEST,
        number: int = 0,
    ) -> None:
        record = self._replica.record(kind, round_, digest, number)
        duties.send.append(SeatEnvelope((NodeId(self._federation.committee.size),), record))

    def _trained(self, event: SeatTrained, duties: Duties) -> None:
        payload = update_payload(self._federation, event.row, self._learner.model)
        digest = digest_of(payload)
        self._hold("update", digest, payload, duties)
        self._submit(OrderingKind.READY, event.round, duties, digest)

    def _hold(self, name: str, digest: Digest, payload: bytes, duties: Duties) -> None:
        """Keep the newest model and this payload; older ones are never requested again."""
        newest = digest_of(model_payload(self._federation, self._learner.model))
        self._held = {d: data for d, data in self._held.items() if d == newest}
        self._held[digest] = payload
        duties.store.append(Store(name, payload, len(payload)))

    # --- Executing the log -----------------------------------------------------------------

    def _execute(self, block: LogBlock, duties: Duties, now: float) -> None:
        record = block.record
        open_ = Round(self._merged + 1)
        match record.kind:
            case OrderingKind.READY if record.round == open_ and record.author not in self._ready:
                self._ready[record.author] = record.digest
                if self._leader is None and len(self._ready) >= self._peers_min:
                    self._designate(block.id, tuple(sorted(self._ready)), duties, now)
            case OrderingKind.ALIVE if record.round == open_ and record.number == self._attempt + 1:
                self._alive.add(record.author)
                able = tuple(sorted(self._alive & self._ready.keys()))
                if 2 * len(able) > len(self._ready) and len(able) >= self._peers_min:
                    self._attempt += 1
                    self._alive.clear()
                    self._designate(block.id, able, duties, now)
            case OrderingKind.MERGED if record.round == open_ and record.author == self._leader:
                self._published(record, duties, now)
            case OrderingKind.DONE:
                self._done.add(record.author)

    def _designate(
        self, block: Digest, ready: tuple[NodeId, ...], duties: Duties, now: float
    ) -> None:
        round_ = Round(self._merged + 1)
        self._leader = leader_of(block, round_, ready)
        self._pulled_from = ready
        self._set_deadline(now)
        if self._leader != self._me:
            return
        self._submit(OrderingKind.LEAD, round_, duties, number=self._attempt)
        mine = self._held[self._ready[self._me]]
        self._rows = {self._me: checked_update(self._federation, mine, self._learner.model)}
        for peer in ready:
            if peer != self._me:
                duties.send.append(SeatEnvelope((peer,), WeightsRequest(self._ready[peer])))
        self._merge_if_due(duties)

    def _published(self, record: Record, duties: Duties, now: float) -> None:
        self._merged = record.round
        self._ready.clear()
        self._alive.clear()
        self._attempt, self._leader, self._rows = 0, None, {}
        self._deadline = None
        if record.author == self._me:
            row = checked_model(self._federation, self._held[record.digest])
            self._learn(record.round, row, duties)
            return
        self._wanted = (record.round, record.digest)
        self._asked = record.author
        duties.send.append(SeatEnvelope((record.author,), WeightsRequest(record.digest)))
        self._set_deadline(now)

    # --- Models ----------------------------------------------------------------------------

    def _take(self, peer: NodeId, payload: bytes, duties: Duties) -> None:
        digest = digest_of(payload)
        if self._wanted is not None and digest == self._wanted[1]:
            row = checked_model(self._federation, payload)
            round_, self._wanted = self._wanted[0], None
            self._deadline = None
            self._learn(round_, row, duties)
            self._hold("model", digest, payload, duties)
            return
        if self._leader != self._me or peer not in self._pulled_from:
            return
        if digest != self._ready[peer]:
            raise BadBlob(f"{peer} serves another model than it announced")
        self._rows[peer] = checked_update(self._federation, payload, self._learner.model)
        self._merge_if_due(duties)

    def _learn(self, round_: Round, row: Row, duties: Duties) -> None:
        self._learner.learn(round_, row, duties)
        if self._learner.done:
            self._submit(OrderingKind.DONE, round_, duties)

    def _merge_if_due(self, duties: Duties, *, at_least: int | None = None) -> None:
        needed = len(self._pulled_from) if at_least is None else at_least
        if len(self._rows) < needed:
            return
        round_ = Round(self._merged + 1)
        updates = [Contribution(author, self._rows[author]) for author in sorted(self._rows)]
        payload = model_payload(self._federation, self._merge(updates, self._learner.model, round_))
        digest = digest_of(payload)
        self._held[digest] = payload
        duties.store.append(Store("model", payload, len(payload)))
        self._submit(OrderingKind.MERGED, round_, duties, digest)

    # --- Fail-over -------------------------------------------------------------------------

    def _set_deadline(self, now: float) -> None:
        if self._profile.fail_over:
            # The leader gives its peers half of the time that its peers give the leader.
            share = 0.5 if self._leader == self._me else 1.0
            self._deadline = now + share * self._profile.leader_timeout_s

    def _on_timeout(self, duties: Duties, now: float) -> None:
        if self._wanted is not None:
            # Who published is gone; somebody else may have the model by now.
            self._asked = NodeId((self._asked + 1) % self._federation.committee.size)
            if self._asked != self._me:
                duties.send.append(SeatEnvelope((self._asked,), WeightsRequest(self._wanted[1])))
        elif self._leader == self._me:
            self._merge_if_due(duties, at_least=self._peers_min)
        elif self._me in self._ready:
            self._submit(
                OrderingKind.ALIVE, Round(self._merged + 1), duties, number=self._attempt + 1
            )
        self._set_deadline(now)


def machine_of(
    federation: Federation,
    seat: NodeId,
    initial: Row,
    signer: Signer,
    scheme: Scheme,
    orderer_key: bytes,
    profile: SwarmProfile | None = None,
    merge: Merge | None = None,
) -> Machine:
    """A node's peer, or the ordering service in the seat after the last node."""
    if seat < federation.committee.size:
        chosen = profile or SwarmProfile()
        return Peer(federation, seat, signer, scheme, orderer_key, initial, chosen, merge)
    return Orderer(federation, signer, scheme)
