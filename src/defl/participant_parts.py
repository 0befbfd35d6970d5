"""What one node is made of when it starts and when an epoch begins, and read-only views of it.

What the parts do together is in participant.py.
"""

from defl.client import RoundClient
from defl.committee import Federation
from defl.consensus.chain import genesis_of
from defl.consensus.replica import Replica
from defl.consensus.safety import Safety, first_record
from defl.contacts import Contacts, PeerRole
from defl.crossing import Crossing
from defl.crypto import Signer
from defl.evidence import EvidenceLog
from defl.finish import Finish, Isolation
from defl.ids import OUTSIDER, Digest, NodeId, Round
from defl.interest import Interest
from defl.ledger import Ledger, LedgerState
from defl.messages import Chunk, Evidence, Manifest, Message, genesis_qc
from defl.output import ClosedRound, Durable, Question, SafetyRecord
from defl.pool.pool import Pool
from defl.recall import Recall


def first_record_of(federation: Federation, closed: tuple[ClosedRound, ...] = ()) -> SafetyRecord:
    """Nothing has been signed in this epoch. `closed`: the rounds that its log begins with."""
    genesis = genesis_of(federation, Ledger(federation, closed))
    return first_record(federation.epoch, genesis_qc(genesis.id))


def first_durable(federation: Federation, initial: Manifest) -> Durable:
    """The disk of a new node: a record that nothing has been signed, and the initial weights."""
    return Durable(
        record=first_record_of(federation),
        models=((Round(0), initial),),
        held=((initial, frozenset(range(len(initial.chunks)))),),
    )


def present_epoch(origin: Federation, durable: Durable) -> Federation:
    """The facts of the epoch that a node was in when it stopped; `origin`: those of epoch 0."""
    if durable.switch is None:
        return origin
    return Federation(origin.charter, durable.switch.membership)


class ParticipantParts:
    def __init__(
        self,
        federation: Federation,
        me: NodeId,
        signer: Signer,
        durable: Durable,
        safety: type[Safety] = Safety,
        awaits_chain: bytes = b"",
    ) -> None:
        """`federation`: the facts of the epoch that the durable state is of. A guest says that it
        is ready once it has been in the epoch whose chain id begins with `awaits_chain`."""
        self._signer = signer
        self._safety = safety
        self.awaits_chain = awaits_chain
        switch = durable.switch
        self._set_facts(federation, me, switch.closed if switch is not None else ())
        self._contacts = Contacts(federation, me, switch.former if switch is not None else ())
        self._recall = Recall(federation, me)
        self._begin_log(durable)
        self._round = self._replica.state.round
        self._pool = Pool(federation, me, signer, durable, self._round)
        self._client = RoundClient(
            federation,
            me,
            signer,
            self._pool,
            durable.models,
            self._finish,
            self._contacts.leavers,
        )
        self._evidence = EvidenceLog(me, durable.evidence, federation.epoch)
        self._proven: Round = Round(-1)
        self._leavers_wait = True  # to be shown that they may go
        self._isolation = Isolation()
        self._started = False
        self._others_wake_at = 0.0  # when a part other than the replica next needs a Tick
        self._join_parts()

    def _set_facts(
        self, federation: Federation, me: NodeId, closed: tuple[ClosedRound, ...]
    ) -> None:
        self.federation = federation
        self.me = me
        self.closed = closed  # rounds of earlier epochs, with which this epoch's log begins
        if self.awaits_chain and federation.chain.startswith(self.awaits_chain):
            self.awaits_chain = b""

    def _begin_log(self, durable: Durable) -> None:
        """The parts that exist anew in each epoch."""
        federation, me, signer = self.federation, self.me, self._signer
        ledger = Ledger(federation, self.closed)
        self._replica: Replica[LedgerState] = Replica(
            federation, me, signer, ledger, durable, safety=self._safety
        )
        self._finish = Finish(federation, me, signer, durable.attestations)
        self._contacts.set_changes(self._replica.state.changes)

    def _join_parts(self) -> None:
        self._crossing = Crossing(
            self.federation, self.me, self._signer, self._contacts, self._replica, self._pool
        )
        self._crossing.may_be_ready = not self.awaits_chain
        self._interest = Interest(
            self.federation.epoch,
            self._replica,
            self._pool,
            self._client,
            self._finish,
            self._recall,
            self._evidence,
            self._contacts,
        )

    # --- Read-only views --------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.federation.epoch

    @property
    def replica(self) -> Replica[LedgerState]:
        return self._replica

    @property
    def pool(self) -> Pool:
        return self._pool

    @property
    def client(self) -> RoundClient:
        return self._client

    @property
    def state(self) -> LedgerState:
        return self._replica.state

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return self._evidence.all

    @property
    def answers_missing(self) -> int:
        """How many more members must answer its Recall before this node may sign."""
        return self._recall.answers_missing

    @property
    def attesting(self) -> int:
        """Members that attest the last model as this node computed it."""
        return self._finish.agreeing

    @property
    def finished(self) -> bool:
        """Nobody needs this node any more."""
        return self._finish.finished or self.departed

    @property
    def isolated(self) -> bool:
        """This node has been cut off for so long that it stops."""
        return self._isolation.stops

    @property
    def is_over(self) -> bool:
        """It decides nothing more: nobody needs it, or it is isolated."""
        return self.finished or self.isolated

    @property
    def departed(self) -> bool:
        """It was a member, and enough of those that are can do without it."""
        return self._crossing.departed

    @property
    def key(self) -> bytes:
        """This node's public key."""
        return self._signer.public_key

    @property
    def role(self) -> PeerRole:
        """What this node is in the present epoch; one that waits for a place is a guest."""
        if self.me != OUTSIDER:
            return PeerRole.MEMBER
        was_member = any(known.member.key == self.key for known in self._contacts.former)
        return PeerRole.FORMER if was_member else PeerRole.GUEST

    @property
    def contacts(self) -> Contacts:
        return self._contacts

    @property
    def changes_unsent(self) -> bool:
        """Does something that the operator wants still have to reach the ledger?"""
        return self._crossing.changes_unsent

    def wanted(self, peer: NodeId, message: Message) -> Message | Question | None:
        """Which part of an unverified message is worth verifying."""
        return self._interest.wanted(peer, message)

    def has_requested(self, peer: NodeId, chunk: Chunk) -> bool:
        """Whether this node waits for the peer to send this chunk: then the peer does not pay."""
        return self._pool.has_requested(chunk, peer)

    @property
    def model(self) -> Digest | None:
        """The model of the newest closed round, once this node has it."""
        manifest = self._client.model(self.state.round)
        return manifest.digest if manifest is not None else None

    @property
    def stored(self) -> dict[str, int]:
        return {**self._replica.stored, **self._pool.stored, "evidence": len(self._evidence)}
