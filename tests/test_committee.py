"""The agreed facts: their limits, and the values derived from them."""

import pytest
from msgspec.structs import replace

from defl.committee import (
    TAU_MAX,
    AggQuorum,
    Charter,
    Committee,
    Federation,
    Membership,
    Rules,
    Timing,
)
from defl.errors import UserError
from defl.fields import MEMBERS_MAX
from defl.ids import NO_DIGEST, Digest, NodeId
from defl.ledger import Ledger, LedgerState
from defl.output import ClosedRound, Reference
from defl.schema import Codec, Entry, Schema
from defl.sim.scenario import federation_of, signers_of
from defl.wire import control_frame_bytes_max
from support.builders import Small


def facts_of(nodes: int = 4, **changes: object) -> Federation:
    signers, _ = signers_of(nodes, seed=1, real=False)
    return federation_of(signers, rounds=3, **changes)[0]


@pytest.mark.parametrize(
    ("members", "faults", "quorum"), [(4, 1, 3), (5, 1, 4), (6, 1, 5), (7, 2, 5), (100, 33, 67)]
)
def test_two_quorums_always_share_an_honest_member(members: int, faults: int, quorum: int) -> None:
    committee = Committee(tuple(bytes([i]) for i in range(members)))
    assert (committee.faults, committee.quorum) == (faults, quorum)
    assert 2 * committee.quorum - members > committee.faults


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau": 1}, "2 to 32 rounds"),
        ({"tau": TAU_MAX + 1}, "2 to 32 rounds"),
        ({"faults_max": 2}, "at most 1"),
        ({"nodes": 3}, "4 to 100 members"),
        ({"values": 2**20, "chunk_bytes": 256}, "larger chunk_bytes"),
    ],
)
def test_impossible_facts_are_refused_with_the_allowed_range(
    changes: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        facts_of(**changes)


def test_two_members_with_one_key_are_refused() -> None:
    signers, _ = signers_of(4, seed=1, real=False)
    with pytest.raises(UserError, match="same key"):
        federation_of((*signers[:3], signers[0]), rounds=1)


def test_a_member_with_a_replaced_key_is_refused() -> None:
    facts = facts_of()
    with pytest.raises(UserError, match="a key that was replaced"):
        replace(facts.membership, replaced_keys=(facts.members[0].key,))


@pytest.mark.parametrize("bounds", [{"view_base_s": 0.0}, {"gst_lt_min_s": 9e9}, {"grace_s": -1.0}])
def test_impossible_timing_is_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(UserError):
        Timing(**bounds)


OTHER_DIGEST = Digest(b"\x01" * 32)
OTHER_CHARTERS: dict[str, object] = {
    "schema": Schema((Entry("point", (65,)),)),
    "initial": OTHER_DIGEST,
    "tau": 3,
    "rules": Rules.JOLTEON,
    "agg_quorum": AggQuorum.PAPER,
    "aggregation": "krum",
    "faults_max": 0,
    "codec": Codec.BF16,
    "chunk_bytes": 512,
    "timing": Timing(grace_s=1.0),
    "document": OTHER_DIGEST,
}
OTHER_MEMBERSHIPS: dict[str, object] = {
    "epoch": 1,
    "origin": OTHER_DIGEST,
    "parent": OTHER_DIGEST,
    "first_round": 2,
    "rounds": 4,
    "members": facts_of(nodes=5).members,
    "replaced_keys": (b"\x01" * 32,),
}


def test_the_chain_id_depends_on_every_fact() -> None:
    assert list(OTHER_CHARTERS) == list(Charter.__struct_fields__)
    assert list(OTHER_MEMBERSHIPS) == list(Membership.__struct_fields__)
    plain = facts_of()
    others = [
        *(replace(plain, charter=replace(plain.charter, **{fact: value}))
          for fact, value in OTHER_CHARTERS.items()),
        *(replace(plain, membership=replace(plain.membership, **{fact: value}))
          for fact, value in OTHER_MEMBERSHIPS.items()),
    ]  # fmt: skip

    assert len({federation.chain for federation in (plain, *others)}) == 1 + len(others)
    assert facts_of().chain == plain.chain


def test_epoch_0_has_no_origin_and_no_parent_and_opens_with_round_1() -> None:
    membership = facts_of().membership

    assert (membership.epoch, membership.first_round) == (0, 1)
    assert membership.origin == membership.parent == NO_DIGEST


def test_the_largest_state_fits_a_snapshots_frame() -> None:
    small = Small(real=False)
    digest, signature = bytes(32), bytes(64)
    refs = tuple(
        Reference(NodeId(i), digest, 2**40, digest, bytes(13), signature)
        for i in range(MEMBERS_MAX)
    )
    closed = tuple(ClosedRound(2**40, digest, digest, refs, 2**40, 33) for _ in range(TAU_MAX))
    state = LedgerState(2**40, refs, tuple(NodeId(i) for i in range(MEMBERS_MAX)), closed)
    # The snapshot's two headers carry a QC and a TC each.
    headers = 2 * 3 * MEMBERS_MAX * 80
    room = control_frame_bytes_max(MEMBERS_MAX)
    assert len(Ledger(small.federation).encode(state)) + headers < room


def test_a_schema_that_shares_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="shares nothing"):
        Schema((Entry("empty", (0,)),))


def test_integer_and_float_seconds_make_the_same_chain_id() -> None:
    assert (
        facts_of(timing=Timing(view_base_s=1)).chain
        == facts_of(timing=Timing(view_base_s=1.0)).chain
    )


def test_an_unknown_codec_and_no_rounds_are_refused() -> None:
    with pytest.raises(UserError, match="fp32, bf16, int8"):
        facts_of(codec="zip")
    with pytest.raises(UserError, match="at least one round"):
        replace(facts_of().membership, rounds=0)
