"""The pool's signer, called directly, never signs a contradiction."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from defl.errors import SigningRefused
from defl.ids import NO_DIGEST, Digest, NodeId, Round
from defl.messages import Manifest, Offer, StoreAck
from defl.output import Durable
from defl.pool.blob_index import BlobIndex
from defl.pool.certify import Certifier
from defl.schema import Codec
from support.builders import Small

SMALL = Small(real=False)
ME, AUTHOR, ROUND = NodeId(0), NodeId(1), Round(1)
ONE, OTHER = (
    Manifest(SMALL.federation.schema.digest, Codec.FP32, NO_DIGEST, 400, (Digest(bytes([i]) * 32),))
    for i in range(2)
)


def certifier(offers: Sequence[Offer] = (), acks: Sequence[StoreAck] = ()) -> Certifier:
    """A signer of a node that has fetched and checked both blobs."""
    durable = Durable(None, offers=tuple(offers), acks=tuple(acks))
    index = BlobIndex()
    for manifest in (ONE, OTHER):
        index.add_whole(manifest)
        index.mark_checked(manifest.digest)
    return Certifier(SMALL.federation, ME, SMALL.signers[ME], durable, index)


def offer_of(manifest: Manifest) -> Offer:
    return Offer(ROUND, AUTHOR, manifest, b"")


def test_two_blobs_of_one_author_and_round_are_never_both_acknowledged() -> None:
    signer = certifier()
    ack = signer.sign_ack(offer_of(ONE))

    with pytest.raises(SigningRefused, match="acknowledged another blob of member 1 for round 1"):
        signer.sign_ack(offer_of(OTHER))
    assert signer.given == (ack,)
    assert signer.sign_ack(offer_of(ONE)) == ack


@pytest.mark.parametrize("present", ["nothing", "a chunk", "all bytes, unchecked"])
def test_a_blob_that_was_not_checked_is_never_acknowledged(present: str) -> None:
    index = BlobIndex()
    manifest = replace(ONE, chunks=(*ONE.chunks, *OTHER.chunks))
    if present == "a chunk":
        index.add_chunk(manifest, 0)
        index.mark_checked(manifest.digest)
    elif present != "nothing":
        index.add_whole(manifest)
    signer = Certifier(SMALL.federation, ME, SMALL.signers[ME], Durable(None), index)

    with pytest.raises(SigningRefused, match="not checked the blob of member 1 for round 1"):
        signer.sign_ack(offer_of(manifest))
    assert signer.given == ()


def test_the_ack_of_one_blob_is_not_that_of_another() -> None:
    signer = certifier()
    ack = signer.sign_ack(offer_of(ONE))

    assert signer.acked(offer_of(ONE)) == ack
    assert signer.acked(offer_of(OTHER)) is None


def test_an_ack_binds_the_signer_across_a_restart() -> None:
    ack = certifier().sign_ack(offer_of(ONE))

    with pytest.raises(SigningRefused):
        certifier(acks=[ack]).sign_ack(offer_of(OTHER))


def test_two_blobs_are_never_both_offered_for_one_round() -> None:
    signer = certifier()
    offer = signer.sign_offer(ROUND, ONE)

    with pytest.raises(SigningRefused, match="offered another blob for round 1"):
        signer.sign_offer(ROUND, OTHER)
    assert signer.sign_offer(ROUND, ONE) == offer
    assert signer.sign_offer(Round(2), OTHER).manifest == OTHER


def test_an_offer_binds_across_a_restart() -> None:
    offer = certifier().sign_offer(ROUND, ONE)

    with pytest.raises(SigningRefused):
        certifier(offers=[offer]).sign_offer(ROUND, OTHER)


def test_closed_rounds_are_forgotten() -> None:
    signer = certifier()
    signer.sign_offer(ROUND, ONE)
    signer.sign_ack(offer_of(ONE))
    signer.forget(ROUND)

    assert len(signer) == 0
    assert signer.may_offer(ROUND, OTHER)
