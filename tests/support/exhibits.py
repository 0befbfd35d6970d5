"""What the checker is shown: certificates, states, disks, and what it sees of a participant."""

from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from types import SimpleNamespace

from msgspec.structs import replace

from defl.crypto import SIGNATURE_BYTES
from defl.ids import NO_DIGEST, Digest, NodeId, Round, View
from defl.ledger import ClosedRound, LedgerState
from defl.messages import (
    QC,
    TC,
    Block,
    Message,
    Proposal,
    Upd,
    Vote,
    ack_statement,
    bitmap_of,
    timeout_statement,
    vote_statement,
)
from defl.output import (
    Durable,
    Reference,
    StoreChunk,
)
from defl.participant import Participant
from defl.sim.checks import Checker
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
    """Of four members, of whom the last lies."""
    return Checker(FEDERATION, SCHEME, honest=lambda member: member != LIAR)


def failed(checker: Checker) -> set[str]:
    assert {what.partition(":")[0] for what in checker.violations} == checker_says(checker)
    return checker_says(checker)


def checker_says(checker: Checker) -> set[str]:
    assert tuple(checker.verdicts) == CHECKS
    return {check for check, holds in checker.verdicts.items() if not holds}


class Conversation(Transcript):
    """What was said in an honest run: genuine blocks and certificates to bend."""

    def __init__(self) -> None:
        super().__init__([].append)
        self.messages: list[Message] = []

    def message(self, now: float, source: NodeId, target: NodeId, message: Message) -> None:  # noqa: ARG002
        self.messages.append(message)


@cache
def honest_conversation() -> tuple[Message, ...]:
    transcript = Conversation()
    cluster = cluster_of(4, rounds=3, seed=1, transcript=transcript)
    assert cluster.federation == FEDERATION
    cluster.run()
    assert cluster.conclude() == []
    return tuple(transcript.messages)


def honest_blocks() -> list[Block]:
    """Linked, the first one on the genesis block."""
    found = {m.block.view: m.block for m in honest_conversation() if isinstance(m, Proposal)}
    chain = [found[view] for view in sorted(found)]
    assert all(b.parent == a.id for a, b in pairwise(chain))
    return chain


def qc(view: int, block: Digest, members: tuple[int, ...], signatures: int | None = None) -> QC:
    said = vote_statement(CHAIN, EPOCH, View(view), block)
    signed = [SIGNERS[member].sign(said) for member in members]
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
    said = ack_statement(CHAIN, EPOCH, Round(round_), NodeId(author), name, NO_DIGEST, 256)
    unsigned = Upd(
        Round(round_),
        NodeId(author),
        name,
        256,
        NO_DIGEST,
        bitmap_of(map(NodeId, ackers), 4),
        tuple(SIGNERS[acker].sign(said) for acker in ackers),
        NOISE,
    )
    return replace(unsigned, signature=SIGNERS[author].sign(unsigned.statement(CHAIN, EPOCH)))


def vote(view: int, block: Digest, author: int = 0) -> Vote:
    return Vote(EPOCH, View(view), block, NodeId(author), NOISE, View(0), View(0))


def reference(author: int, name: Digest, base: Digest = NO_DIGEST) -> Reference:
    return Reference(NodeId(author), name, 256, base, b"\x07", NOISE)


def closed(round_: int, *updates: Reference) -> ClosedRound:
    return ClosedRound(Round(round_), digest("closing block"), NO_DIGEST, updates)


UPDATES = tuple(reference(author, MODEL.digest) for author in range(4))
ALL_CLOSED = LedgerState(Round(3), (), (), (closed(2, *UPDATES), closed(3, *UPDATES)))


@dataclass
class Looks:
    """As much of a participant as the checker looks at."""

    me: NodeId
    state: LedgerState
    stored: dict[str, int] = field(default_factory=dict)
    height: int = 9
    view: int = 9

    @property
    def replica(self) -> SimpleNamespace:
        root = SimpleNamespace(view=View(self.view - 2))
        head = SimpleNamespace(height=self.height)
        return SimpleNamespace(head=head, root=root, view=View(self.view))


def disk(*, whole: bool = True, data: bytes = PAYLOAD) -> Disk:
    made = Disk(Durable(record=None))
    if whole:
        made.store_chunk(StoreChunk(MODEL, 0, data))
    return made


def conclude(
    checker: Checker,
    *states: LedgerState,
    disks: tuple[Disk, ...] = (),
    stored: dict[str, int] | None = None,
) -> set[str]:
    looks = [Looks(NodeId(i), state, stored or {}) for i, state in enumerate(states)]
    given = disks or tuple(disk() for _ in looks)
    honest: list[tuple[Participant, Disk]] = list(zip(looks, given, strict=True))
    checker.conclude(honest, rounds_due=True)
    return failed(checker)
