"""Attacks by traffic: silence, delay, replay and floods.

Unsolicited messages leave at most once per period of virtual time. Otherwise answers to a flood
would feed it, and a run would never end.
"""

import random
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from defl.crypto import Signer
from defl.ids import Round, View, digest_of
from defl.messages import (
    Attestation,
    BlockRequest,
    Certificates,
    Chunk,
    ChunkRequest,
    Evidence,
    Gossip,
    Manifest,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    Offer,
    Proposal,
    Status,
    Timeout,
    Vote,
    attestation_statement,
    timeout_statement,
    vote_statement,
)
from defl.output import Envelope, Event, Output, Received, Work
from defl.participant import Participant
from defl.pool.weights import payload_bytes
from defl.sim.byzantine.liar import Item, Liar
from defl.sim.sim_node import Unruly
from defl.wire import NO_EPOCH, control_frame_bytes_max, encode


class Silent(Liar):
    """Receives everything and sends nothing."""

    def instead(self, item: Item) -> Iterable[Item]:  # noqa: ARG002
        return ()


# A slow node's messages and work are delayed by up to this many view periods.
SLOW_PERIODS_MAX = 5.0


class Slow(Liar):
    """Honest, but its messages and work are delayed by up to several view periods."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._late: list[tuple[float, tuple[Item, ...], tuple[Work, ...]]] = []

    def handle(self, event: Event, now: float) -> Output:
        output = self.participant.handle(event, now)
        if output.send or output.work:
            longest = SLOW_PERIODS_MAX * self._federation.timing.view_base_s
            due = now + self._rng.uniform(0, longest)
            self._late.append((due, output.send, output.work))
        ready = [late for late in self._late if late[0] <= now]
        self._late = [late for late in self._late if late[0] > now]
        times = [due for due, _, _ in self._late]
        if output.wake_at is not None:
            times.append(output.wake_at)
        return replace(
            output,
            send=tuple(item for _, send, _ in ready for item in send),
            work=tuple(work for _, _, works in ready for work in works),
            drop=(),  # what is late may still need it
            wake_at=min(times, default=None),
        )


REPLAY_PERIOD_S = 0.05
REPLAYED_AT_ONCE = 3
HISTORY_MAX = 512


class Replayer(Liar):
    """Replays old messages, its own and others', and re-signs its own for other chains."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._history: deque[Message] = deque(maxlen=HISTORY_MAX)
        self._next_at = 0.0
        self._elsewhere = digest_of(b"another federation")

    def instead(self, item: Item) -> Iterable[Item]:
        if not isinstance(item, Envelope):
            return (item,)
        self._history.append(item.message)
        strange = self._of_another_epoch(item.message)
        strange += self._of_another_federation(item.message)
        return (item, *(Envelope(None, message) for message in strange))

    def besides(self, event: Event, now: float) -> Iterator[Item]:
        if isinstance(event, Received):
            self._history.append(event.message)
        if now < self._next_at:
            return
        self._next_at = now + REPLAY_PERIOD_S
        for _ in range(min(REPLAYED_AT_ONCE, len(self._history))):
            yield Envelope(None, self._rng.choice(self._history))

    def _of_another_epoch(self, message: Message) -> tuple[Message, ...]:
        epoch = self._epoch + 1
        match message:
            case Vote(view=view, block=block):
                return (self._vote(view, block, epoch),)
            case Timeout(view=view, high_qc=high_qc):
                return (self._timeout(view, high_qc, epoch),)
            case Proposal(block=block):
                header = replace(block.header, epoch=epoch)
                return (self._proposal(replace(block, header=header)),)
            case Offer() if message.author == self._me:
                signed = self._signer.sign(message.statement(self._chain, epoch))
                return (replace(message, signature=signed),)
        return ()

    def _of_another_federation(self, message: Message) -> tuple[Message, ...]:
        """What this node, as a member of two federations, signs in the other one."""
        chain, epoch, sign = self._elsewhere, self._epoch, self._signer.sign
        match message:
            case Vote(view=view, block=block):
                statement = vote_statement(chain, epoch, view, block)
            case Timeout(view=view, high_qc=high_qc):
                statement = timeout_statement(chain, epoch, view, high_qc.view)
            case Proposal():
                statement = message.statement(chain)
            case Offer() if message.author == self._me:
                statement = message.statement(chain, epoch)
            case Gossip(transactions=transactions):
                mine = [tx for tx in transactions if tx.author == self._me]
                moved = [replace(tx, signature=sign(tx.statement(chain, epoch))) for tx in mine]
                return (Gossip(tuple(moved)),) if moved else ()
            case _:
                return ()
        return (replace(message, signature=sign(statement)),)


FLOOD_PERIOD_S = 0.1


class Flooder(Liar):
    """Sends everything that costs the receiver something, to all, many times a second; also bytes
    that are not a message at all."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._next_at = 0.0

    def handle(self, event: Event, now: float) -> Output:
        output = super().handle(event, now)
        if now < self._next_at or not self._may_flood(now):
            return output
        self._next_at = now + FLOOD_PERIOD_S
        fields: list[Any] = [getattr(output, name) for name in Output.__struct_fields__]
        flood = tuple(self._in_epoch(Envelope(None, message)) for message in self._flood())
        frames = tuple((peer, frame) for frame in self._rubbish() for peer in self._peers)
        return replace(Unruly(*fields), send=output.send + flood, frames=frames)

    def _flood(self) -> Iterator[Message]:
        view, record, rng = self._view, self.participant.replica.record, self._rng
        head = self.participant.replica.head
        for _ in range(3):
            ahead = View(view + rng.randrange(100))
            yield self._vote(ahead, self._noise())
            yield self._timeout(View(ahead + 1), record.high_qc)
        yield Status(View(0), View(0))
        yield Status(View(2**40), View(2**40))
        yield BlockRequest(head.id, head.height)
        yield BlockRequest(record.high_qc.block, self.participant.replica.head.height)
        yield Certificates(record.high_qc, record.high_tc)
        yield Gossip((self._agg(Round(self._round + rng.randrange(5))),))
        yield self._offer(Round(self._round + rng.randrange(5)))
        yield ManifestRequest(self._noise())
        yield ManifestRequest(self._federation.initial)
        yield ManifestAnswer(self._manifest())
        yield ChunkRequest(self._federation.initial, 0)
        yield ChunkRequest(self._noise(), rng.randrange(64))
        yield Chunk(self._noise(), 0, memoryview(rng.randbytes(64)))
        yield NotHeld(self._noise())
        yield self._attestation()
        vote = self._vote(view, self._noise())
        yield Evidence(vote, vote)

    def _manifest(self) -> Manifest:
        federation = self._federation
        size = payload_bytes(federation.schema, federation.codec)
        chunks = tuple(self._noise() for _ in range(-(-size // federation.chunk_bytes)))
        return Manifest(federation.schema.digest, federation.codec, self._noise(), size, chunks)

    def _offer(self, round_: Round) -> Offer:
        unsigned = Offer(round_, self._me, self._manifest(), b"")
        statement = unsigned.statement(self._chain, self._epoch)
        return replace(unsigned, signature=self._signer.sign(statement))

    def _attestation(self) -> Attestation:
        round_, digest = Round(self._federation.rounds), self._noise()
        statement = attestation_statement(self._chain, self._epoch, round_, digest)
        return Attestation(round_, digest, self._me, self._signer.sign(statement))

    def _rubbish(self) -> Iterator[bytes]:
        yield b""
        yield self._rng.randbytes(self._rng.randrange(1, 200))
        yield encode(self._vote(self._view, self._noise()), self._epoch)[:-1]
        yield encode(Status(self._view, self._view), self._epoch) + b"\x00"
        yield NO_EPOCH + b"\x91" * 5000  # lists in lists in lists
        yield NO_EPOCH + b"\x93\x0e\xcf" + bytes(8) + b"\x00"  # a zero in nine bytes
        yield bytes(control_frame_bytes_max(self._committee.slots) + 1)
