"""For the tests of the simulator's checker: certificates, states, disks and a stub participant."""

from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

from msgspec.structs import replace

from defl.committee import Federation
from defl.crypto import SIGNATURE_BYTES
from defl.fields import bitmap_of
from defl.ids import NO_DIGEST, Digest, NodeId, Round, View
from defl.ledger import LedgerState
from defl.messages import (
    QC,
    TC,
    Block,
    Message,
    Proposal,
    Upd,
    Vote,
    ack_statement,
    timeout_statement,
    vote_statement,
)
from defl.output import (
    ClosedRound,
    Durable,
    Reference,
    StoreChunk,
)
from defl.participant import Participant
from defl.sim.checks import Checker, HonestNode
from defl.sim.disk import Disk
from defl.sim.scenario import cluster_of, federation_of, signers_of
from defl.sim.transcript import Transcript
from defl.sim.verdicts import CHECKS

LIAR = NodeId(3)
SIGNERS, SCHEME = signers_of(4, seed=1, real=False)
FEDERATION, (MODEL, PAYLOAD) = federation_of(SIGNERS, rounds=3)
CHAIN, EPOCH = FEDERATION.chain, FEDERATION.epoch
NOISE = bytes(SIGNATURE_BYTES)


def digest(text: str) -> Digest:
    return Digest(text.encode().ljust(32, b"."))


def checker_of_four() -> Checker:
    """A checker of four members, the last of which is Byzantine."""
    return Checker(FEDERATION, SCHEME, honest=lambda member: member != LIAR)


def failed(checker: Checker) -> set[str]:
    assert {line.partition(":")[0] for line in checker.violations} == failed_verdicts(checker)
    return failed_verdicts(checker)


def failed_verdicts(checker: Checker) -> set[str]:
    assert tuple(checker.verdicts) == CHECKS
    return {check for check, holds in checker.verdicts.items() if not holds}


class MessageLog(Transcript):
    """The messages of an honest run: genuine blocks and certificates to tamper with."""

    def __init__(self) -> None:
        super().__init__([].append)
        self.messages: list[Message] = []

    def message(self, now: float, source: NodeId, target: NodeId, message: Message) -> None:  # noqa: ARG002
        self.messages.append(message)


@cache
def honest_messages() -> tuple[Message, ...]:
    transcript = MessageLog()
    cluster = cluster_of(4, rounds=3, seed=1, transcript=transcript)
    assert cluster.federation == FEDERATION
    cluster.run()
    assert cluster.conclude() == []
    return tuple(transcript.messages)


def honest_blocks() -> list[Block]:
    """A chain of blocks that starts on the genesis block."""
    by_view = {m.block.view: m.block for m in honest_messages() if isinstance(m, Proposal)}
    chain = [by_view[view] for view in sorted(by_view)]
    assert all(b.parent == a.id for a, b in pairwise(chain))
    return chain


def qc(view: int, block: Digest, members: tuple[int, ...], signatures: int | None = None) -> QC:
    statement = vote_statement(CHAIN, EPOCH, View(view), block)
    signed = [SIGNERS[member].sign(statement) for member in members]
    given = tuple(signed) if signatures is None else tuple(signed * signatures)[:signatures]
    return QC(View(view), block, bitmap_of(map(NodeId, members), 4), given)


def tc(view: int, highs: tuple[int, ...], carried: QC) -> TC:
    signed = tuple(
        SIGNERS[member].sign(timeout_statement(CHAIN, EPOCH, View(view), View(high)))
        for member, high in enumerate(highs)
    )
    signers = bitmap_of(map(NodeId, range(len(highs))), 4)
    return TC(View(view), signers, tuple(map(View, highs)), signed, carried)


def upd(round_: int, author: int, name: Digest, ackers: tuple[int, ...] = (0, 1, 2)) -> Upd:
    statement = ack_statement(CHAIN, EPOCH, Round(round_), NodeId(author), name, NO_DIGEST, 256)
    unsigned = Upd(
        Round(round_),
        NodeId(author),
        name,
        256,
        NO_DIGEST,
        bitmap_of(map(NodeId, ackers), 4),
        tuple(SIGNERS[acker].sign(statement) for acker in ackers),
        NOISE,
    )
    return replace(unsigned, signature=SIGNERS[author].sign(unsigned.statement(CHAIN, EPOCH)))


def vote(view: int, block: Digest, author: int = 0) -> Vote:
    return Vote(EPOCH, View(view), block, NodeId(author), NOISE, View(0), View(0))


def reference(author: int, name: Digest, base: Digest = NO_DIGEST) -> Reference:
    return Reference(NodeId(author), name, 256, base, b"\x07", NOISE)


def closed(round_: int, *updates: Reference) -> ClosedRound:
    return ClosedRound(Round(round_), digest("closing block"), NO_DIGEST, updates, 0, 1)


UPDATES = tuple(reference(author, MODEL.digest) for author in range(4))
ALL_CLOSED = LedgerState(Round(3), (), (), (closed(2, *UPDATES), closed(3, *UPDATES)))


@dataclass
class ParticipantStub:
    """Those attributes of a participant that the checker reads."""

    me: NodeId
    state: LedgerState
    stored: dict[str, int] = field(default_factory=dict)
    height: int = 9
    view: int = 9
    federation: Federation = FEDERATION
    departed: bool = False
    finished: bool = False

    @property
    def epoch(self) -> int:
        return self.federation.epoch

    @property
    def replica(self) -> SimpleNamespace:
        root = SimpleNamespace(view=View(self.view - 2))
        head = SimpleNamespace(height=self.height)
        return SimpleNamespace(head=head, root=root, view=View(self.view))


def disk(*, whole: bool = True, data: bytes = PAYLOAD) -> Disk:
    new = Disk(Durable(record=None))
    if whole:
        new.store_chunk(StoreChunk(MODEL, 0, data))
    return new


def honest_nodes(
    participants: list[ParticipantStub], disks: tuple[Disk, ...] = ()
) -> list[HonestNode]:
    given = disks or tuple(disk() for _ in participants)
    return [
        HonestNode(participant.me, cast("Participant", participant), its)
        for participant, its in zip(participants, given, strict=True)
    ]


def conclude(
    checker: Checker,
    *states: LedgerState,
    disks: tuple[Disk, ...] = (),
    stored: dict[str, int] | None = None,
) -> set[str]:
    participants = [
        ParticipantStub(NodeId(i), state, stored or {}) for i, state in enumerate(states)
    ]
    checker.conclude(honest_nodes(participants, disks), rounds_due=True)
    return failed(checker)
