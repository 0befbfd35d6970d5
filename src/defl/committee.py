"""The agreed facts of a federation, and their consequences.

Facts are frozen: the charter forever, the membership for one epoch. The hash of both is the
chain id. Consequences (f, quorums, leaders, sizes) are derived and never configured.
"""

from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from defl.cards import Address, Card, Certificate, Key, Name, Reach
from defl.errors import UserError
from defl.fields import (
    MEMBERS_MAX,
    NUMBER_MAX,
    WEIGHT_DEFAULT,
    WEIGHT_MAX,
    ADigest,
    AWeight,
)
from defl.ids import NO_DIGEST, Digest, NodeId, digest_of
from defl.messages import CHUNKS_MAX
from defl.schema import Codec, Entry, Schema

# f = 1 needs four members. With fewer, no member may fail, and a single server would do as well.
MEMBERS_MIN = 4
# Keys that were replaced, in all epochs: ten for each of 100 members, 32 kB. None of them may
# return, so none is forgotten: when the list is full, no further key is replaced.
REPLACED_KEYS_MAX = 1000
# Aggregation needs two rounds: the last one, and the base that it was trained from.
TAU_MIN = 2
# A state holds the references of tau rounds; those of 100 members must fit in a snapshot's frame.
TAU_MAX = 32
# Rules that score an update by the m - f - 2 updates that are closest to it, at least one.
SCORES_NEED_ANOTHER = ("krum", "multi_krum_blanchard", "multi_krum_two")
# Rules whose result is a mean of the updates that they keep. The others have no use for weights.
WEIGHS_MEMBERS = (
    "fed_avg",
    "multi_krum",
    "multi_krum_blanchard",
    "multi_krum_two",
    "smallest_eigenvalue_subset",
    "adaptive",
)
# Some thirty years: beyond any wait, and multiples of it are still finite.
SECONDS_MAX = 1e9
# Smaller chunks cost more in digests and requests than they carry.
CHUNK_BYTES_MIN = 256
# A chunk is held in memory whole, and occupies a slow link while it travels.
CHUNK_BYTES_MAX = 2**26


class Rules(StrEnum):
    HOTSTUFF = "hotstuff"  # three-chain, the paper's
    JOLTEON = "jolteon"  # two-chain, one view faster


class AggQuorum(StrEnum):
    QUORUM = "quorum"  # q = n - f voters close a round
    PAPER = "paper"  # f + 1, as in the paper: f liars and one fast node can shut others out


class Member(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    key: Key
    certificate: Certificate = b""  # X.509, DER; a simulated member has none
    address: Address = ""
    active: bool = True  # False: it has left, and its place in the list stays empty
    reach: Reach = Reach.BOTH
    relay: bool = False
    # Agreed by the others, never stated by the member itself. It never changes: rounds of an epoch
    # that has ended are aggregated with the facts of a later one.
    weight: AWeight = WEIGHT_DEFAULT


def member_of(card: Card, weight: int = WEIGHT_DEFAULT) -> Member:
    return Member(
        card.name,
        card.key,
        card.certificate,
        card.address,
        reach=card.reach,
        relay=card.relay,
        weight=weight,
    )


class Timing(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds in seconds. They affect speed alone, never what is agreed."""

    view_base_s: float = 1.0
    view_cap_s: float = 60.0
    gst_lt_min_s: float = 1.0
    gst_lt_max_s: float = 3600.0
    grace_s: float = 60.0  # how long a finished node keeps serving members that lag

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:  # 1 and 1.0 are one fact, and make one chain id
            msgspec.structs.force_setattr(self, name, float(getattr(self, name)))
            if not abs(getattr(self, name)) <= SECONDS_MAX:  # nor NaN
                raise UserError(
                    f"timing.{name} must be a number of seconds, at most {SECONDS_MAX:g}"
                )
        if not 0 < self.view_base_s <= self.view_cap_s:
            raise UserError("timing needs 0 < view_base_s <= view_cap_s")
        if not 0 < self.gst_lt_min_s <= self.gst_lt_max_s:
            raise UserError("timing needs 0 < gst_lt_min_s <= gst_lt_max_s")
        if self.grace_s < 0:
            raise UserError("grace_s cannot be negative")


def faults_of(members: int) -> int:
    """f: the Byzantine members that consensus tolerates."""
    return (members - 1) // 3


def updates_needed(aggregation: str, faults_max: int) -> int:
    """The fewest updates that an aggregation rule can be computed on at all."""
    return faults_max + (3 if aggregation in SCORES_NEED_ANOTHER else 1)


def require_counts(members: int, rounds: int) -> None:
    if not MEMBERS_MIN <= members <= MEMBERS_MAX:
        raise UserError(f"a federation has {MEMBERS_MIN} to {MEMBERS_MAX} members, not {members}")
    if rounds < 1:
        raise UserError(f"a federation trains at least one round, not {rounds}")
    if rounds > NUMBER_MAX:
        raise UserError(f"rounds is too large: there can be at most {NUMBER_MAX}")


def require_weight(weight: int, name: str) -> None:
    if type(weight) is not int or not 1 <= weight <= WEIGHT_MAX:
        raise UserError(
            f"the weight of {name} is {weight!r}; give a whole number from 1 to {WEIGHT_MAX}"
        )


def has_use_for(weights: Iterable[int], aggregation: str) -> bool:
    """Equal weights mean the same to every rule."""
    return aggregation in WEIGHS_MEMBERS or len(set(weights)) <= 1


class Charter(Struct, frozen=True, forbid_unknown_fields=True):
    """The facts that never change, even when the membership does.

    The defaults are those of every new federation, real or simulated: `DEFAULTS`.
    """

    schema: Schema
    # The digest of the initial weights' blob, which every member serves; zero in a draft.
    initial: ADigest = NO_DIGEST
    tau: int = TAU_MIN
    rules: Rules = Rules.HOTSTUFF
    agg_quorum: AggQuorum = AggQuorum.QUORUM
    aggregation: str = "adaptive"  # docs/AGGREGATION.md says why
    faults_max: int | None = None  # None: f
    codec: Codec = Codec.FP32
    chunk_bytes: Annotated[int, Meta(ge=CHUNK_BYTES_MIN, le=CHUNK_BYTES_MAX)] = 2**20
    timing: Timing = Timing()
    document: ADigest = NO_DIGEST  # of the agreed file's bytes; zero where there is no file

    def __post_init__(self) -> None:
        if self.codec not in set(Codec):
            raise UserError(f"no codec is named {self.codec!r}; there are: {', '.join(Codec)}")
        if not TAU_MIN <= self.tau <= TAU_MAX:
            raise UserError(f"tau is {self.tau}, but {TAU_MIN} to {TAU_MAX} rounds can be kept")
        if not CHUNK_BYTES_MIN <= self.chunk_bytes <= CHUNK_BYTES_MAX:
            raise UserError(
                f"chunk_bytes is {self.chunk_bytes}, but {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX} "
                "are allowed"
            )
        if 4 * self.schema.values > CHUNKS_MAX * self.chunk_bytes:
            raise UserError(
                f"a model of {4 * self.schema.values} bytes has more than {CHUNKS_MAX} chunks of "
                f"{self.chunk_bytes} bytes; choose a larger chunk_bytes"
            )

    def updates_faults_max(self, faults: int) -> int:
        """How many Byzantine updates the aggregation rule tolerates where consensus does f."""
        return faults if self.faults_max is None else min(self.faults_max, faults)


# What a new federation gets unless its founders choose otherwise. The commands, `defl.run`,
# `defl.simulate` and the simulator take their defaults from here. The schema only stands for the
# model's own.
DEFAULTS = Charter(Schema((Entry("model", (1,)),)))


class Membership(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts of one epoch: who takes part, and in which rounds."""

    epoch: Annotated[int, Meta(ge=0)] = 0
    origin: ADigest = NO_DIGEST  # chain id of epoch 0; zero in epoch 0 itself
    parent: ADigest = NO_DIGEST  # chain id of the epoch before; zero in epoch 0
    first_round: Annotated[int, Meta(ge=1)] = 1  # the round that this epoch opens with
    rounds: Annotated[int, Meta(ge=1)]  # the last round, counted from epoch 0
    members: tuple[Member, ...]  # it only grows: a member's place, its id, never moves
    # Keys that were members' and were replaced, oldest first; it only grows as well.
    replaced_keys: Annotated[tuple[Key, ...], Meta(max_length=REPLACED_KEYS_MAX)] = ()

    def __post_init__(self) -> None:
        require_counts(sum(member.active for member in self.members), self.rounds)
        if len(self.members) > MEMBERS_MAX:
            raise UserError(f"a federation has at most {MEMBERS_MAX} members in all its epochs")
        for field in ("name", "key"):
            values = [getattr(member, field) for member in self.members]
            if len(set(values)) != len(values):
                raise UserError(f"two members have the same {field}")
        if not {member.key for member in self.members}.isdisjoint(self.replaced_keys):
            raise UserError("a member has a key that was replaced; a key is used once")
        for member in self.members:
            require_weight(member.weight, member.name)


class Federation(Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """All agreed facts. Each fact can be read from here, wherever it belongs."""

    charter: Charter
    membership: Membership

    def __post_init__(self) -> None:
        faults_max, faults = self.charter.faults_max, self.committee.faults
        # Later epochs may be smaller; then the aggregation rule is told f.
        if faults_max is not None and self.epoch == 0 and not 0 <= faults_max <= faults:
            raise UserError(
                f"faults_max is {faults_max}, but consensus among {len(self.members)} members "
                f"tolerates at most {faults}"
            )
        if not has_use_for((member.weight for member in self.members), self.aggregation):
            raise UserError(
                f"{self.aggregation} ignores weights, since its result is no mean of whole "
                f"updates; give all members one weight, or choose a rule that weighs them: "
                f"{', '.join(WEIGHS_MEMBERS)}"
            )

    @cached_property
    def chain(self) -> Digest:
        """The id of this federation in this epoch: the hash of every fact."""
        return digest_of(b"defl/federation" + msgspec.msgpack.encode(self))

    @property
    def origin(self) -> Digest:
        """The id of epoch 0, by which the federation is known for all its life."""
        return self.chain if self.epoch == 0 else self.membership.origin

    @cached_property
    def committee(self) -> "Committee":
        return Committee(
            tuple(member.key for member in self.members),
            frozenset(NodeId(i) for i, member in enumerate(self.members) if not member.active),
        )

    @property
    def updates_faults_max(self) -> int:
        """How many Byzantine updates the aggregation rule is configured to tolerate."""
        return self.charter.updates_faults_max(self.committee.faults)

    @property
    def schema(self) -> Schema:
        return self.charter.schema

    @property
    def initial(self) -> Digest:
        return self.charter.initial

    @property
    def tau(self) -> int:
        return self.charter.tau

    @property
    def rules(self) -> Rules:
        return self.charter.rules

    @property
    def agg_quorum(self) -> AggQuorum:
        return self.charter.agg_quorum

    @property
    def aggregation(self) -> str:
        return self.charter.aggregation

    @property
    def codec(self) -> Codec:
        return self.charter.codec

    @property
    def chunk_bytes(self) -> int:
        return self.charter.chunk_bytes

    @property
    def timing(self) -> Timing:
        return self.charter.timing

    @property
    def document(self) -> Digest:
        return self.charter.document

    @property
    def epoch(self) -> int:
        return self.membership.epoch

    @property
    def first_round(self) -> int:
        return self.membership.first_round

    @property
    def rounds(self) -> int:
        return self.membership.rounds

    @property
    def members(self) -> tuple[Member, ...]:
        return self.membership.members


class Committee(Struct, frozen=True, dict=True):
    """The members as consensus sees them: keys by id."""

    keys: tuple[bytes, ...]  # of departed members too
    departed: frozenset[NodeId] = frozenset()

    @cached_property
    def slots(self) -> int:
        """Ids are below this; bitmaps have so many bits."""
        return len(self.keys)

    @cached_property
    def members(self) -> tuple[NodeId, ...]:
        return tuple(NodeId(i) for i in range(self.slots) if i not in self.departed)

    @cached_property
    def size(self) -> int:
        """n: the members that take part."""
        return self.slots - len(self.departed)

    def has(self, member: NodeId) -> bool:
        return 0 <= member < self.slots and member not in self.departed

    @cached_property
    def faults(self) -> int:
        return faults_of(self.size)

    @cached_property
    def quorum(self) -> int:
        # n - f: two quorums share at least f + 1 members, one of them honest.
        return self.size - self.faults
