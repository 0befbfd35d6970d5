"""Which part of an unverified message is worth verifying: all of it, some of it, or none.

There is exactly one rule per message type. The rules are read-only and cheap, since they protect
the verifier from liars and run again for each repetition. A Question means: answer the peer, but do
not verify.
"""

from defl.changes import Ready
from defl.client import RoundClient
from defl.consensus.replica import Replica
from defl.contacts import Contacts, PeerRole
from defl.evidence import EvidenceLog
from defl.finish import Finish
from defl.ids import NodeId
from defl.ledger import LedgerState
from defl.messages import (
    Attestation,
    BlockRequest,
    Blocks,
    Certificates,
    Chunk,
    ChunkRequest,
    Evidence,
    Gossip,
    Handover,
    Have,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    Offer,
    Pace,
    Proposal,
    Slot,
    Snapshot,
    Statements,
    StatementsRequest,
    Status,
    StoreAck,
    Timeout,
    Transaction,
    Vote,
    slot_of,
)
from defl.output import Question
from defl.pool.pool import Pool
from defl.recall import Recall


class Interest:
    """The interests of one node in one epoch."""

    def __init__(
        self,
        epoch: int,
        replica: Replica[LedgerState],
        pool: Pool,
        client: RoundClient,
        finish: Finish,
        recall: Recall,
        evidence: EvidenceLog,
        contacts: Contacts,
    ) -> None:
        self._epoch = epoch
        self._replica = replica
        self._pool = pool
        self._client = client
        self._finish = finish
        self._recall = recall
        self._evidence = evidence
        self._contacts = contacts

    def wanted(self, peer: NodeId, message: Message) -> Message | Question | None:
        wanted, is_proven = self._replica.wanted, self._evidence.is_proven
        match message:
            case Vote():
                return message if wanted.vote(message, is_proven) else Question(peer, message)
            case Timeout():
                return message if wanted.timeout(message, is_proven) else Question(peer, message)
            case Proposal():
                return wanted.proposal(message, is_proven)
            case Certificates(qc=qc, tc=tc):
                return wanted.certificates(qc, tc)
            case Gossip(transactions=transactions):
                return self._transactions(peer, transactions)
            case Blocks(blocks=blocks):
                return wanted.blocks(blocks)
            case Snapshot():
                return message if wanted.snapshot(message) else None
            case Handover(epoch=epoch):
                return message if epoch == self._epoch else None
            case Offer():
                return _or_question(self._pool.wants_offer(message, is_proven), peer, message)
            case Attestation():
                return _or_question(self._finish.wants(message, is_proven), peer, message)
            case Pace():
                return message if self._client.wants_pace(message) else None
            case StoreAck():
                return message if self._pool.wants_ack(message) else None
            case Evidence():
                return message if self._evidence.wants(message) else None
            case Chunk():
                return message if self._pool.wants_chunk(message) else None
            case Have():
                return message if self._pool.wants_have(message) else None
            case Statements():
                return message if self._recall.wants_answer_of(peer) else None
            case Status() | BlockRequest() | ManifestRequest() | ChunkRequest() | NotHeld():
                return message  # unsigned; the code that answers limits its answers
            case StatementsRequest():
                return message  # likewise
            case ManifestAnswer():
                return message  # unsigned
            case _:
                return None

    def _transactions(self, peer: NodeId, transactions: tuple[Transaction, ...]) -> Gossip | None:
        """At most one per slot: an honest peer never sends two. A guest speaks for its own key."""
        kept: dict[Slot, Transaction] = {}
        guest = self._contacts.role_of(peer) is PeerRole.GUEST
        for transaction in transactions:
            if guest and not self._is_own(peer, transaction):
                continue
            slot = slot_of(transaction)
            if slot not in kept and self._replica.wants(transaction, self._evidence.is_proven):
                kept[slot] = transaction
        return Gossip(tuple(kept.values())) if kept else None

    def _is_own(self, guest: NodeId, transaction: Transaction) -> bool:
        return isinstance(transaction, Ready) and transaction.key == self._contacts.key_of(guest)


def _or_question(
    worth: bool | None, peer: NodeId, message: Offer | Attestation
) -> Offer | Attestation | Question | None:
    if worth is None:
        return None
    return message if worth else Question(peer, message)
