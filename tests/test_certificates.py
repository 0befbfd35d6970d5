"""Certificates with real Ed25519: a quorum of distinct members, each with a valid signature."""

from typing import Any

import pytest

from defl.errors import (
    BadCertificate,
    BadSignature,
)
from defl.fields import bitmap_of
from defl.ids import NodeId, View
from defl.messages import QC
from defl.verifier import VERIFIED_MAX, Verifier
from support.builders import Small, name, nodes, tampered

SMALL = Small()
BLOCK = SMALL.block((SMALL.upd(0, 1), SMALL.agg(2, 1)))
QC_1 = SMALL.qc(1, BLOCK.id)
MANIFEST, _ = SMALL.blob(1)
OTHER_MANIFEST, _ = SMALL.blob(2)


def check(verifier: Verifier, message: Any) -> None:
    verifier.verify(message)


# --- Certificates ----------------------------------------------------------------------------


def test_a_certificate_of_any_quorum_is_accepted() -> None:
    verifier = SMALL.verifier()
    verifier.verify(SMALL.qc(1, BLOCK.id, nodes(1, 2, 3)))
    verifier.verify(SMALL.qc(1, BLOCK.id, nodes(0, 1, 2, 3)))
    verifier.verify(SMALL.tc(3, QC_1, [1, 0, 1]))
    verifier.verify(SMALL.upd(3, 1, ackers=nodes(0, 2, 3)))


CERTIFIED: dict[str, tuple[str, str]] = {
    "qc": ("signers", "signatures"),
    "tc": ("signers", "signatures"),
    "upd": ("ackers", "acks"),
}


def certificate(kind: str, members: tuple[NodeId, ...], count: int | None = None) -> Any:
    """Signed once for each listed member; a member listed twice signs twice."""
    match kind:
        case "qc":
            signed: Any = SMALL.qc(1, BLOCK.id, members)
        case "tc":
            whole = SMALL.tc(3, QC_1, [1] * SMALL.size)
            signed = tampered(
                whole,
                signers=bitmap_of(members, SMALL.size),
                high_views=tuple(whole.high_views[m] for m in members),
                signatures=tuple(whole.signatures[m] for m in members),
            )
        case _:
            signed = SMALL.upd(1, 1, ackers=members)
    signatures = CERTIFIED[kind][1]
    if count is None:
        return signed
    return tampered(signed, **{signatures: getattr(signed, signatures)[:count]})


@pytest.mark.parametrize("kind", CERTIFIED)
def test_one_signature_short_of_a_quorum_certifies_nothing(kind: str) -> None:
    check(SMALL.verifier(), certificate(kind, nodes(0, 1, 2)))
    with pytest.raises(BadCertificate, match="2 distinct members, 3 are needed"):
        check(SMALL.verifier(), certificate(kind, nodes(0, 1)))


@pytest.mark.parametrize("kind", CERTIFIED)
def test_a_member_that_signs_twice_counts_once(kind: str) -> None:
    with pytest.raises(BadCertificate, match="2 members with 3 signatures"):
        check(SMALL.verifier(), certificate(kind, nodes(0, 1, 1)))


@pytest.mark.parametrize("kind", CERTIFIED)
def test_every_listed_signer_needs_a_signature(kind: str) -> None:
    with pytest.raises(BadCertificate, match="4 members with 3 signatures"):
        check(SMALL.verifier(), certificate(kind, nodes(0, 1, 2, 3), count=3))


@pytest.mark.parametrize("kind", CERTIFIED)
@pytest.mark.parametrize(
    "bitmap", [b"\x17", b"\x83", b"\x07\x00", b"\x07\x01", b"", bytes(12) + b"\x07"]
)
def test_members_beyond_the_last_and_bitmaps_of_another_length_are_refused(
    kind: str, bitmap: bytes
) -> None:
    good = certificate(kind, nodes(0, 1, 2))
    with pytest.raises(BadCertificate, match="members that do not exist"):
        check(SMALL.verifier(), tampered(good, **{CERTIFIED[kind][0]: bitmap}))


@pytest.mark.parametrize("kind", CERTIFIED)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_invalid_signature_invalidates_a_certificate(kind: str, place: int) -> None:
    good = certificate(kind, nodes(0, 1, 2))
    field = CERTIFIED[kind][1]
    signatures = list(getattr(good, field))
    signatures[place] = signatures[place - 1]
    with pytest.raises(BadSignature):
        check(SMALL.verifier(), tampered(good, **{field: tuple(signatures)}))


@pytest.mark.parametrize("kind", CERTIFIED)
def test_the_cache_of_valid_certificates_compares_all_their_bytes(kind: str) -> None:
    """A cached certificate must not vouch for a forged one about the same thing."""
    verifier = SMALL.verifier()
    good = certificate(kind, nodes(0, 1, 2))
    check(verifier, good)
    check(verifier, good)

    forged = bytes(64)
    field = CERTIFIED[kind][1]
    with pytest.raises(BadSignature):
        check(verifier, tampered(good, **{field: (*getattr(good, field)[:2], forged)}))
    with pytest.raises((BadSignature, BadCertificate)):
        check(verifier, tampered(good, **{CERTIFIED[kind][0]: b"\x0b"}))


def test_the_memory_of_verified_certificates_is_bounded() -> None:
    small = Small(real=False)
    verifier = small.verifier()
    for view in range(1, VERIFIED_MAX + 10):
        verifier.verify(small.qc(view, BLOCK.id))

    assert len(verifier._certificates) == VERIFIED_MAX


def test_the_genesis_qc_is_valid_by_identity_and_no_other_qc_of_view_zero_is() -> None:
    verifier = SMALL.verifier()
    verifier.verify(SMALL.genesis_qc)
    for fake in (
        tampered(SMALL.genesis_qc, block=name("another genesis")),
        SMALL.qc(0, name("another genesis")),
        SMALL.qc(0, SMALL.genesis.id),
    ):
        with pytest.raises(BadCertificate, match="view 0"):
            verifier.verify(fake)


def test_an_unsigned_qc_of_a_later_view_is_refused() -> None:
    with pytest.raises(BadCertificate):
        SMALL.verifier().verify(QC(View(1), SMALL.genesis.id, b"", ()))


@pytest.mark.parametrize(
    ("why", "tc"),
    [
        ("carries a lower QC", SMALL.tc(3, SMALL.genesis_qc, [1, 0, 0])),
        ("carries a higher QC", SMALL.tc(3, QC_1, [0, 0, 0])),
        ("reports its own view", SMALL.tc(3, SMALL.qc(3, BLOCK.id), [3, 0, 0])),
        ("lacks a view", tampered(SMALL.tc(3, QC_1), high_views=(View(1), View(1)))),
        ("has a view too many", tampered(SMALL.tc(3, QC_1), high_views=(View(1),) * 4)),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_tc_must_carry_the_qc_of_its_signers_maximum_view(why: str, tc: Any) -> None:
    with pytest.raises(BadCertificate):
        SMALL.verifier().verify(tc)


def test_the_views_that_a_tc_reports_are_the_signed_ones() -> None:
    true = SMALL.tc(4, QC_1, [1, 0, 1])
    SMALL.verifier().verify(true)
    with pytest.raises(BadSignature):
        SMALL.verifier().verify(tampered(true, high_views=(View(1), View(1), View(1))))


def test_the_qc_inside_a_tc_a_timeout_and_a_block_is_verified_too() -> None:
    forged = tampered(QC_1, signatures=(bytes(64),) * 3)
    for message in (
        SMALL.tc(3, forged),
        SMALL.timeout(1, 3, forged),
        SMALL.timeout(1, 3, QC_1, SMALL.tc(2, forged)),
        SMALL.proposal(SMALL.block(view=2, parent=BLOCK, qc=forged)),
        SMALL.proposal(SMALL.block(view=4, parent=BLOCK, tc=SMALL.tc(3, forged))),
    ):
        with pytest.raises(BadSignature):
            check(SMALL.verifier(), message)


def test_a_timeout_must_report_a_qc_that_is_older_than_its_view() -> None:
    with pytest.raises(BadCertificate):
        SMALL.verifier().verify(SMALL.timeout(1, 1, QC_1))
