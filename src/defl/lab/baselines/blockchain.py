"""Biscotti's settings, messages, lottery, verdicts and rules for valid blocks.

Pure functions and frozen messages; biscotti.py decides who does what and when.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated

import msgspec
from msgspec import Meta

from defl.committee import Federation
from defl.crypto import Scheme
from defl.errors import BadBlock, BadSignature
from defl.fields import MEMBERS_MAX, ADigest, AMember, ANumber, ARound, ASignature, ASigners
from defl.ids import Digest, NodeId, Round, digest_of
from defl.lab.baselines.frames import Frames, frames_for
from defl.lab.baselines.machine import Message

STAKE_FIRST = 10
STAKE_LEAST = 1  # no node leaves the lottery for good

# Beyond the weights: a signature of each verifier over an opinion on each member, and stakes.
BYTES_PER_PAIR = 64
BYTES_PER_MEMBER = 256


class BiscottiProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="biscotti"):
    verifiers: int = 3
    miners: int = 1
    noisers: int = 0
    noise_sigma: float = 0.01
    wait_share: float = 0.7  # of the n updates, before a verifier judges
    verify_timeout_s: float = 60.0  # after the first update, or the first verdicts
    round_timeout_s: float = 1800.0  # then an empty block is appended
    keep_refused: bool = False  # blocks hold refused updates too, marked
    flood: bool = True  # False: only the leader sends the block
    secure_aggregation: bool = False


# What the paper compares with (its blocks hold all n updates: T(n+1)M stored, 5, 8 and 11 times
# DeFL's traffic at n = 4, 7, 10).
PAPER = BiscottiProfile(verifiers=1, wait_share=1.0, keep_refused=True)


# --- Messages ------------------------------------------------------------------------------


class Shown(Message, frozen=True, tag=1):
    """To a verifier: an update, with noise if there are noisers, and the hash of the true one."""

    round: ARound
    commitment: ADigest
    payload: bytes

    @property
    def weights_bytes(self) -> int:
        return len(self.payload)


class Judged(Message, frozen=True, tag=3):
    """To the leader miner: an update that the verifiers have judged."""

    round: ARound
    payload: bytes

    @property
    def weights_bytes(self) -> int:
        return len(self.payload)


class NoiseAsk(Message, frozen=True, tag=4):
    round: ARound


class Noise(Message, frozen=True, tag=5):
    round: ARound
    payload: bytes

    @property
    def weights_bytes(self) -> int:
        return len(self.payload)


class BiscottiShare(Message, frozen=True, tag=6):
    """A share of one author's change or, to the leader miner, of the sum over `authors`."""

    round: ARound
    authors: ASigners
    payload: bytes

    @property
    def weights_bytes(self) -> int:
        return len(self.payload)


class Opinion(msgspec.Struct, frozen=True, array_like=True):
    author: AMember
    commitment: ADigest  # of the update as it will be aggregated
    accepted: bool


class Verdicts(Message, frozen=True, tag=2):
    """One verifier's opinions on the updates that it saw."""

    round: ARound
    verifier: AMember
    opinions: Annotated[tuple[Opinion, ...], Meta(max_length=MEMBERS_MAX)]
    signature: ASignature

    def statement(self, chain: Digest) -> Digest:
        fields = (self.round, self.verifier, self.opinions)
        return digest_of(b"defl/biscotti/verdicts" + chain + msgspec.msgpack.encode(fields))

    def on(self, author: NodeId) -> Opinion | None:
        return next((opinion for opinion in self.opinions if opinion.author == author), None)


class BlockUpdate(msgspec.Struct, frozen=True, array_like=True):
    author: AMember
    commitment: ADigest
    accepted: bool
    payload: bytes  # empty with secure aggregation


class BiscottiBlock(Message, frozen=True, tag=7):
    round: ARound
    previous: ADigest
    author: AMember
    model: bytes
    updates: Annotated[tuple[BlockUpdate, ...], Meta(max_length=MEMBERS_MAX)]
    stakes: Annotated[tuple[ANumber, ...], Meta(max_length=MEMBERS_MAX)]
    verdicts: Annotated[tuple[Verdicts, ...], Meta(max_length=MEMBERS_MAX)]
    signature: ASignature

    @property
    def weights_bytes(self) -> int:
        return len(self.model) + sum(len(update.payload) for update in self.updates)

    @property
    def id(self) -> Digest:
        unsigned = msgspec.structs.replace(self, signature=b"")
        return digest_of(b"defl/biscotti/block" + msgspec.msgpack.encode(unsigned))


Kinds = Shown | Verdicts | Judged | NoiseAsk | Noise | BiscottiShare | BiscottiBlock


def frames_of(federation: Federation) -> Frames:
    n = federation.committee.size
    around = n * n * BYTES_PER_PAIR + (n + 4) * BYTES_PER_MEMBER
    return frames_for(federation, Kinds, payloads=n + 1, bytes_around=around)


# --- Rules ---------------------------------------------------------------------------------


def genesis(chain: Digest) -> Digest:
    return digest_of(b"defl/biscotti/genesis" + chain)


def empty_block(previous: Digest, round_: Round) -> Digest:
    """The id of a round that nobody closed in time: no update, the model as it was."""
    return digest_of(b"defl/biscotti/empty" + previous + round_.to_bytes(8, "big"))


def lottery(tip: Digest, role: bytes, stakes: Sequence[int], count: int) -> tuple[NodeId, ...]:
    """`count` distinct winners; each draw is won with a chance in proportion to the stake."""
    left = {NodeId(node): stake for node, stake in enumerate(stakes) if stake > 0}
    winners = []
    for draw in range(count):
        seed = digest_of(b"defl/biscotti/lottery" + tip + role + draw.to_bytes(8, "big"))
        ticket = int.from_bytes(seed, "big") % sum(left.values())
        ends = accumulate(left.values())
        winner = next(node for node, end in zip(left, ends, strict=True) if ticket < end)
        winners.append(winner)
        del left[winner]
    return tuple(winners)


def decided(verdicts: Sequence[Verdicts], verifiers: int, author: NodeId) -> Digest | bool | None:
    """The commitment that a majority of verifiers accepts; False: no majority is possible."""
    opinions = [verdict.on(author) for verdict in verdicts]
    for opinion in opinions:
        if opinion is not None and 2 * opinions.count(opinion) > verifiers and opinion.accepted:
            return opinion.commitment
    against = sum(opinion is None or not opinion.accepted for opinion in opinions)
    return False if 2 * (verifiers - against) <= verifiers else None


def next_stakes(stakes: Sequence[int], updates: Sequence[BlockUpdate]) -> tuple[int, ...]:
    """Accepted authors gain stake, refused ones lose it."""
    after = list(stakes)
    for update in updates:
        change = 1 if update.accepted else -1
        after[update.author] = max(STAKE_LEAST, after[update.author] + change)
    return tuple(after)


def check_verdicts(verdicts: Verdicts, federation: Federation, scheme: Scheme) -> None:
    key = federation.committee.keys[verdicts.verifier]
    if not scheme.verify(key, verdicts.statement(federation.chain), verdicts.signature):
        raise BadSignature(f"verdicts that {verdicts.verifier} did not sign")


def check_block(
    block: BiscottiBlock,
    federation: Federation,
    scheme: Scheme,
    *,
    tip: Digest,
    stakes: Sequence[int],
    leader: NodeId,
    verifiers: Sequence[NodeId],
    commitments_only: bool,
) -> None:
    """Check everything but the model: author, predecessor, verdicts, updates and stakes."""
    members = federation.committee.size
    if block.author != leader or block.previous != tip:
        raise BadBlock(f"a block of {block.author} that does not follow the chain's tip")
    if not scheme.verify(federation.committee.keys[leader], block.id, block.signature):
        raise BadSignature(f"a block that {leader} did not sign")
    voices = [verdict.verifier for verdict in block.verdicts]
    if len(set(voices)) != len(voices) or not set(voices) <= set(verifiers):
        raise BadBlock("verdicts of others than the round's verifiers")
    for verdict in block.verdicts:
        if verdict.round != block.round:
            raise BadBlock(f"verdicts of round {verdict.round}")
        check_verdicts(verdict, federation, scheme)
    authors = [update.author for update in block.updates]
    if authors != sorted(set(authors)) or any(author >= members for author in authors):
        raise BadBlock("the updates are not of distinct members in their order")
    for update in block.updates:
        accepted = decided(block.verdicts, len(verifiers), update.author) == update.commitment
        if accepted != update.accepted:
            raise BadBlock(f"the update of {update.author} contradicts the verifiers' verdict")
        bare = commitments_only and not update.payload
        if not bare and digest_of(update.payload) != update.commitment:
            raise BadBlock(f"the update of {update.author} is not what was committed to")
    if block.stakes != next_stakes(stakes, block.updates):
        raise BadBlock("the stakes do not follow from the updates")
