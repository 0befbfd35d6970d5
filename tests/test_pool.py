"""The life of a blob at one node: acknowledged once, refused, offered, resumed."""

import pytest
from msgspec.structs import replace

from defl.ids import NodeId, Round, digest_of
from defl.messages import (
    Manifest,
    ManifestAnswer,
    ManifestRequest,
    Offer,
    StoreAck,
    Upd,
)
from defl.output import (
    Durable,
    Envelope,
    EvidenceFound,
    PeerMisbehaved,
    Received,
    ReceivedChunk,
    Tick,
    Train,
    Trained,
    Validated,
)
from defl.participant import Participant
from defl.pool.blob_index import BlobIndex
from defl.schema import Codec
from defl.sim.disk import Disk
from defl.work import model_blob, model_row
from support.benches import ME, PoolBench, acks_sent, chunk_requests, sent
from support.builders import Small, let_sign, name, nodes, tampered

SMALL = Small()  # n = 4, q = 3, tau = 2; a blob has two chunks: 256 and 144 bytes
AUTHOR, OTHER = NodeId(1), NodeId(2)
BLOB, BYTES = SMALL.blob(1)
BLOB_2, BYTES_2 = SMALL.blob(2)


def participant_with(durable: Durable) -> Participant:
    return Participant(SMALL.federation, ME, SMALL.signers[ME], durable)


# --- One ack per author and round ------------------------------------------------------------


def test_a_blob_is_fetched_checked_and_acknowledged_with_a_durable_record() -> None:
    bench = PoolBench(SMALL)
    offered = bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    assert chunk_requests(offered) == [(AUTHOR, 0), (AUTHOR, 1)]
    whole = bench.deliver(AUTHOR, BLOB, BYTES)
    assert [work.manifest for work in whole.work] == [BLOB]
    assert not whole.acks, "nothing is acknowledged before the bytes are checked"

    done = bench.validate(BLOB.digest)

    (ack,) = done.acks
    assert sent(done, StoreAck) == [((AUTHOR,), ack)]
    SMALL.verifier().verify(ack)
    assert (ack.base, ack.size, ack.acker) == (BLOB.base, 400, ME)


def test_a_second_blob_of_one_author_and_round_is_evidence_and_the_first_counts() -> None:
    bench = PoolBench(SMALL)
    bench.acknowledge(AUTHOR, 1, BLOB, BYTES)
    first = SMALL.offer(1, 1, BLOB)

    again = bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB_2))

    (evidence,) = [n.evidence for n in again.notices if isinstance(n, EvidenceFound)]
    SMALL.verifier().verify(evidence)
    assert sent(again, Offer) == [((AUTHOR,), first)], "the author gets its first offer back"
    assert not chunk_requests(again)
    bench.deliver(AUTHOR, BLOB_2, BYTES_2)
    bench.pool.validated(BLOB_2.digest, None)
    assert not bench.settle().acks


def test_a_second_offer_that_a_third_party_relays_is_evidence_but_not_answered() -> None:
    bench = PoolBench(SMALL)
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))

    again = bench.receive(OTHER, SMALL.offer(1, 1, BLOB_2))

    assert any(isinstance(notice, EvidenceFound) for notice in again.notices)
    assert not sent(again, Offer)


def test_a_third_party_with_another_unverified_offer_is_not_shown_the_first() -> None:
    bench = PoolBench(SMALL)
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    answers = []
    for peer in (OTHER, AUTHOR):
        bench.pool.answer_offer(peer, SMALL.offer(1, 1, BLOB_2))
        answers.append([to for to, _ in sent(bench.settle(), Offer)])

    assert answers == [[], [(AUTHOR,)]]


def test_one_ack_per_author_and_round_even_across_a_restart() -> None:
    bench = PoolBench(SMALL)
    bench.acknowledge(AUTHOR, 1, BLOB, BYTES)
    bench.restart()

    offered = bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB_2))
    bench.deliver(AUTHOR, BLOB_2, BYTES_2)
    bench.pool.validated(BLOB_2.digest, None)
    checked = bench.settle()

    assert not chunk_requests(offered)
    assert not offered.acks
    assert not checked.acks
    assert not acks_sent(checked)


def test_an_ack_from_before_a_restart_binds_for_as_long_as_its_round_is_open_to_offers() -> None:
    """The offer itself is forgotten at a restart; tau is 2."""
    bench = PoolBench(SMALL)
    bench.acknowledge(AUTHOR, 2, BLOB, BYTES)
    bench.restart()
    bench.pool.set_round(Round(3))
    bench.settle()

    assert not bench.receive(AUTHOR, SMALL.offer(1, 2, BLOB_2)).send
    assert bench.pool.ack_for(Round(2), AUTHOR) == BLOB.digest


def test_an_ack_binds_across_a_restart_even_if_another_blob_was_committed() -> None:
    """The other blob is complete and wanted, but is still the author's second one."""
    bench = PoolBench(SMALL)
    bench.acknowledge(AUTHOR, 1, BLOB, BYTES)
    bench.restart()
    bench.pool.need((Round(1), AUTHOR), BLOB_2.digest, nodes(2, 3))
    bench.receive(2, ManifestAnswer(BLOB_2), now=100.0)
    bench.deliver(2, BLOB_2, BYTES_2)
    assert bench.pool.has(BLOB_2.digest)

    offered = bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB_2), now=100.0)
    bench.pool.validated(BLOB_2.digest, None)
    checked = bench.settle(100.0)

    assert not offered.work
    for done in (offered, checked):
        assert not done.acks
        assert not acks_sent(done)


def test_an_ack_is_persisted_by_the_output_that_sends_it() -> None:
    participant = participant_with(SMALL.durable())
    let_sign(participant)
    participant.handle(Received(AUTHOR, SMALL.offer(1, 1, BLOB)), 0.0)
    for index, data in enumerate((BYTES[:256], BYTES[256:])):
        event = ReceivedChunk(AUTHOR, BLOB.digest, index, data, digest_of(data))
        participant.handle(event, 0.0)

    output = participant.handle(Validated(BLOB.digest, None), 0.0)

    acks = [e.message for e in output.send if isinstance(e, Envelope) and e.to == (AUTHOR,)]
    assert [type(ack) for ack in acks] == [StoreAck]
    assert output.persist is not None
    assert list(output.persist.acks) == acks


def test_other_authors_and_rounds_are_not_affected_by_an_ack() -> None:
    bench = PoolBench(SMALL)
    bench.acknowledge(AUTHOR, 1, BLOB, BYTES)

    assert len(bench.acknowledge(OTHER, 1, BLOB_2, BYTES_2).acks) == 1
    third, third_bytes = SMALL.blob(3)
    assert len(bench.acknowledge(AUTHOR, 2, third, third_bytes).acks) == 1


def test_a_repeated_offer_is_answered_with_the_same_ack() -> None:
    bench = PoolBench(SMALL)
    (ack,) = bench.acknowledge(AUTHOR, 1, BLOB, BYTES).acks

    again = bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))

    assert acks_sent(again) == [ack]
    assert not again.acks


def test_after_a_restart_the_same_ack_is_sent_again_while_the_bytes_are_held() -> None:
    bench = PoolBench(SMALL)
    (ack,) = bench.acknowledge(AUTHOR, 1, BLOB, BYTES).acks
    bench.restart()

    again = bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))

    assert acks_sent(again) == [ack]
    assert not again.work


def test_an_ack_whose_bytes_were_lost_is_sent_again_only_when_they_are_back() -> None:
    bench = PoolBench(SMALL)
    (ack,) = bench.acknowledge(AUTHOR, 1, BLOB, BYTES).acks
    restarted = bench.restart(power_lost=True)

    offered = bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB), now=100.0)
    assert not acks_sent(restarted)
    assert not acks_sent(offered)
    assert {chunk for _, chunk in chunk_requests(offered)} == {0, 1}

    back = bench.deliver(AUTHOR, BLOB, BYTES)
    assert acks_sent(back) == [ack]


def test_a_blob_that_is_replaced_during_its_check_is_not_acknowledged() -> None:
    """The author's other blob was committed in the meantime, and this one was dropped."""
    bench = PoolBench(SMALL)
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    bench.deliver(AUTHOR, BLOB, BYTES)
    bench.pool.need((Round(1), AUTHOR), BLOB_2.digest, nodes(2, 3))
    assert bench.settle().drop == [BLOB.digest]

    bench.pool.validated(BLOB.digest, None)

    assert not bench.settle().acks


def test_a_blob_that_is_replaced_during_its_check_is_not_acknowledged_for_an_equal_one() -> None:
    """Another author's equal blob keeps the bytes here, but under that author's name alone."""
    bench = PoolBench(SMALL)
    bench.receive(AUTHOR, SMALL.offer(AUTHOR, 1, BLOB))
    bench.receive(OTHER, SMALL.offer(OTHER, 1, BLOB))
    bench.deliver(AUTHOR, BLOB, BYTES)
    bench.pool.need((Round(1), AUTHOR), BLOB_2.digest, nodes(2, 3))

    done = bench.validate(BLOB.digest)

    assert [ack.author for ack in done.acks] == [OTHER]


# --- What is refused -------------------------------------------------------------------------


def test_an_invalid_blob_is_dropped_and_not_fetched_again() -> None:
    bench = PoolBench(SMALL)
    payload = b"\x00\x00\xc0\x7f" + BYTES[4:]  # NaN
    chunks = (digest_of(payload[:256]), BLOB.chunks[1])
    manifest = replace(BLOB, chunks=chunks)

    done = bench.acknowledge(AUTHOR, 1, manifest, payload)

    assert not done.acks
    assert done.drop == [manifest.digest]
    (notice,) = done.notices
    assert isinstance(notice, PeerMisbehaved)
    assert notice.peer == AUTHOR
    assert "NaN" in notice.reason
    again = bench.receive(AUTHOR, SMALL.offer(1, 1, manifest))
    assert not again.send


def test_an_update_that_is_refused_while_a_lost_chunk_is_fetched_is_fetched_no_more() -> None:
    bench = PoolBench(SMALL)
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    bench.deliver(AUTHOR, BLOB, BYTES)
    bench.pool.refetch(BLOB.digest, (0,))
    bench.settle()
    assert bench.pool.stored["fetches"] == 1
    bench.pool.validated(BLOB.digest, "it has a NaN")

    assert bench.pool.stored["fetches"] == 0


def test_a_blob_that_a_committed_one_has_replaced_is_not_dropped_again_when_it_is_refused() -> None:
    bench = PoolBench(SMALL)
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    bench.deliver(AUTHOR, BLOB, BYTES)
    bench.pool.need((Round(1), AUTHOR), BLOB_2.digest, nodes(2, 3))
    assert bench.settle().drop == [BLOB.digest]
    bench.pool.validated(BLOB.digest, "it has a NaN")

    assert bench.settle().drop == []


def test_an_offer_for_a_refused_slot_is_not_worth_verifying() -> None:
    bench = PoolBench(SMALL)
    offer = SMALL.offer(1, 1, BLOB)
    assert bench.pool.wants_offer(offer, lambda _author, _kind: False)
    bench.receive(AUTHOR, offer)
    bench.deliver(AUTHOR, BLOB, BYTES)
    bench.pool.validated(BLOB.digest, "it has a NaN")

    assert bench.pool.wants_offer(offer, lambda _author, _kind: False) is None


def test_refusals_are_forgotten_with_their_rounds() -> None:
    """A liar would make every node remember one more refusal in each round."""
    bench = PoolBench(SMALL)
    bench.receive(AUTHOR, SMALL.offer(1, 1, tampered(BLOB, size=404)))
    assert len(bench.pool._refused) == 1
    bench.pool.set_round(Round(1 + SMALL.federation.tau))

    assert not bench.pool._refused


@pytest.mark.parametrize(
    "manifest",
    [
        tampered(BLOB, codec="bf16"),
        tampered(BLOB, size=404),
        tampered(BLOB, schema=name("another schema")),
        tampered(BLOB, chunks=BLOB.chunks[:1]),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_before_anything_is_fetched(
    manifest: Manifest,
) -> None:
    done = PoolBench(SMALL).receive(AUTHOR, SMALL.offer(1, 1, manifest))

    assert not done.send
    assert [type(notice) for notice in done.notices] == [PeerMisbehaved]


@pytest.mark.parametrize(
    ("round_", "taken"), [(3, False), (4, True), (5, True), (7, True), (8, False)]
)
def test_only_offers_of_the_last_tau_rounds_and_the_next_two_are_accepted(
    round_: int, taken: bool
) -> None:
    bench = PoolBench(SMALL, round_=5)

    assert bool(bench.receive(AUTHOR, SMALL.offer(1, round_, BLOB)).send) is taken


def test_an_observer_acknowledges_and_offers_nothing() -> None:
    bench = PoolBench(SMALL)
    bench.pool.muted = True

    taken = bench.acknowledge(AUTHOR, 1, BLOB, BYTES)
    published = bench.publish(1, BLOB_2, BYTES_2)

    assert not taken.acks
    assert not acks_sent(taken)
    assert published.offer is None
    assert not published.send


# --- The node's own offer --------------------------------------------------------------------


def test_an_update_is_certified_by_exactly_q_acks_the_authors_own_included() -> None:
    bench = PoolBench(SMALL)
    published = bench.publish(1, BLOB, BYTES)
    assert published.offer is not None
    offer = published.offer
    assert [ack.acker for ack in published.acks] == [ME]
    assert sent(published, Offer) == [(nodes(1, 2, 3), offer)]

    assert bench.receive(1, SMALL.ack(1, offer)).certified == []
    (upd,) = bench.receive(3, SMALL.ack(3, offer)).certified
    assert bench.receive(2, SMALL.ack(2, offer)).certified == []

    SMALL.verifier().verify(upd)
    assert (upd.round, upd.digest, upd.base, upd.size) == (1, BLOB.digest, BLOB.base, 400)
    assert upd.ackers == b"\x0b"


def test_acks_certify_an_update_in_whatever_order_they_arrive() -> None:
    bench = PoolBench(SMALL)
    bench.publish(1, BLOB, BYTES)
    offer = bench.pool.offer_for(Round(1))
    assert offer is not None
    bench.receive(3, SMALL.ack(3, offer))
    (upd,) = bench.receive(1, SMALL.ack(1, offer)).certified

    SMALL.verifier().verify(upd)


def test_each_acker_counts_once_and_acks_of_another_blob_do_not_count() -> None:
    bench = PoolBench(SMALL)
    offer = bench.publish(1, BLOB, BYTES).offer
    assert offer is not None
    true = SMALL.ack(1, offer)
    certified: list[Upd] = []
    for ack in (
        true,
        true,
        tampered(SMALL.ack(2, offer), digest=BLOB_2.digest),
        tampered(SMALL.ack(2, offer), base=name("another base")),
        tampered(SMALL.ack(2, offer), size=401),
        tampered(SMALL.ack(2, offer), round=Round(2)),
        tampered(SMALL.ack(2, offer), author=OTHER),
    ):
        certified += bench.receive(ack.acker, ack).certified

    assert certified == []
    assert len(bench.receive(2, SMALL.ack(2, offer)).certified) == 1


def test_acks_for_an_own_update_are_forgotten_with_its_round() -> None:
    """The answer to an acker that restarts has room for those of the kept rounds alone."""
    bench = PoolBench(SMALL)
    bench.publish(1, BLOB, BYTES)
    bench.receive(AUTHOR, SMALL.ack(AUTHOR, SMALL.offer(ME, 1, BLOB)))
    bench.pool.set_round(Round(SMALL.federation.tau))
    assert len(bench.pool.acks_from(AUTHOR)) == 1
    bench.pool.set_round(Round(1 + SMALL.federation.tau))

    assert bench.pool.acks_from(AUTHOR) == ()


def test_an_offer_is_repeated_to_those_who_have_not_acknowledged_until_it_is_certified() -> None:
    bench = PoolBench(SMALL)
    offer = bench.publish(1, BLOB, BYTES).offer
    assert offer is not None
    bench.receive(2, SMALL.ack(2, offer), now=0.5)

    assert not sent(bench.settle(0.9), Offer)
    assert bench.pool.wake_at == 1.0
    assert sent(bench.settle(1.0), Offer) == [(nodes(1, 3), offer)]
    bench.receive(3, SMALL.ack(3, offer), now=1.5)
    assert not sent(bench.settle(5.0), Offer)
    assert bench.pool.wake_at is None


def test_a_restarted_author_resumes_its_offer_and_makes_no_other() -> None:
    bench = PoolBench(SMALL)
    offer = bench.publish(1, BLOB, BYTES).offer
    assert offer is not None

    restarted = bench.restart()
    published = bench.publish(1, BLOB_2, BYTES_2)

    assert sent(restarted, Offer) == [(nodes(1, 2, 3), offer)]
    assert bench.pool.offer_for(Round(1)) == offer
    assert published.offer is None
    assert not published.acks
    bench.receive(1, SMALL.ack(1, offer))
    (upd,) = bench.receive(2, SMALL.ack(2, offer)).certified
    assert upd.digest == BLOB.digest


def test_an_own_offer_that_a_peer_shows_is_durable_and_never_replaced() -> None:
    """The disk is an old copy. The peer shows the offer once; a restart must not forget it."""
    bench = PoolBench(SMALL)
    offer = SMALL.offer(ME, 1, BLOB)
    assert bench.receive(AUTHOR, offer).offer == offer

    bench.restart()
    published = bench.publish(1, BLOB_2, BYTES_2)

    assert bench.pool.offer_for(Round(1)) == offer
    assert published.offer is None


def test_an_author_that_lost_the_bytes_fetches_its_own_blob_back() -> None:
    bench = PoolBench(SMALL)
    offer = bench.publish(1, BLOB, BYTES).offer
    assert offer is not None
    bench.disk.drop(BLOB.digest)

    restarted = bench.restart()

    assert {chunk for _, chunk in chunk_requests(restarted)} == {0, 1}
    assert ME not in {peer for peer, _ in chunk_requests(restarted)}
    assert bench.receive(1, SMALL.ack(1, offer), 100.0).certified == []
    assert bench.receive(2, SMALL.ack(2, offer), 100.0).certified == [], "its own ack needs bytes"
    (upd,) = bench.deliver(OTHER, BLOB, BYTES).certified
    assert upd.digest == BLOB.digest
    assert bench.disk.read(BLOB.digest) == BYTES


def test_an_author_killed_after_one_peer_acked_does_not_train_again() -> None:
    disk = Disk(SMALL.durable())
    disk.store_blob(SMALL.initial, SMALL.initial_payload, 256)
    before = participant_with(disk.recovered())
    assert before.handle(Tick(), 0.0).work == (Train(Round(1), SMALL.initial.digest),)
    let_sign(before)
    disk.store_blob(BLOB, BYTES, 256)
    trained = before.handle(Trained(Round(1), BLOB), 1.0)
    assert trained.persist is not None
    disk.apply(trained.persist)
    (offer,) = [
        e.message for e in trained.send if isinstance(e, Envelope) and isinstance(e.message, Offer)
    ]

    restarted = participant_with(disk.recovered())
    assert restarted.handle(Tick(), 2.0).work == ()
    after = let_sign(restarted, 2.0)

    assert after.work == ()
    assert offer in [item.message for item in after.send if isinstance(item, Envelope)]


def test_a_blob_that_was_stored_but_never_offered_is_dropped_at_the_start() -> None:
    bench = PoolBench(SMALL)
    bench.disk.store_blob(BLOB, BYTES, 256)

    assert bench.restart().drop == [BLOB.digest]
    assert bench.pool.has(SMALL.initial.digest)


def test_a_failed_check_is_requested_again_with_the_next_offer() -> None:
    bench = PoolBench(SMALL)
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    assert len(bench.deliver(AUTHOR, BLOB, BYTES).work) == 1
    assert not bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB)).work, "the fetch is under way"
    bench.pool.not_validated(BLOB.digest)

    assert len(bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB)).work) == 1


def test_acknowledged_bytes_lost_in_a_power_cut_are_fetched_back_at_once() -> None:
    """Not only once the update is committed: others rely on this ack from the start."""
    bench = PoolBench(SMALL)
    bench.acknowledge(AUTHOR, 1, BLOB, BYTES)

    back = bench.restart(power_lost=True)

    assert {to for to, _ in sent(back, ManifestRequest)} <= {(node,) for node in nodes(1, 2, 3)}
    assert sent(back, ManifestRequest)


def test_acknowledged_bytes_that_a_committed_update_replaced_are_not_fetched_back() -> None:
    """No label names them, so nothing would ever drop them again."""
    bench = PoolBench(SMALL)
    bench.acknowledge(AUTHOR, 1, BLOB, BYTES)
    bench.pool.keep((Round(1), AUTHOR), BLOB_2.digest)
    assert bench.settle().drop == [BLOB.digest]
    bench.pool.resume()

    assert bench.pool.stored["fetches"] == 0


def test_a_chunk_that_is_lost_while_others_are_fetched_is_fetched_with_them() -> None:
    bench = PoolBench(SMALL)
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    bench.chunk(AUTHOR, BLOB.digest, 0, BYTES[:256])
    bench.pool.refetch(BLOB.digest, (0,))

    assert {index for _, index in chunk_requests(bench.settle())} == {0, 1}


def test_a_model_is_fetched_in_full_precision_whatever_the_codec_of_updates() -> None:
    small = Small(real=False, codec=Codec.BF16)
    bench = PoolBench(small)
    model, _ = model_blob(small.federation, model_row(small.federation, small.initial_payload) + 1)
    bench.pool.need((Round(1), None), model.digest, (AUTHOR,))
    done = bench.receive(AUTHOR, ManifestAnswer(model))

    assert done.notices == []
    assert chunk_requests(done) == [(AUTHOR, 0), (AUTHOR, 1)]


def bench_of_a_failing_disk(now: float) -> PoolBench:
    """It has acknowledged a blob that the disk could not sync, twice."""
    bench = PoolBench(SMALL)
    bench.acknowledge(AUTHOR, 1, BLOB, BYTES)
    bench.pool.refetch_whole(BLOB.digest, now)
    assert chunk_requests(bench.settle(now)), "the first time at once"
    bench.deliver(AUTHOR, BLOB, BYTES)
    bench.pool.refetch_whole(BLOB.digest, now)
    return bench


def test_a_blob_that_the_disk_loses_again_and_again_is_fetched_less_and_less_often() -> None:
    now = 100.0
    bench = bench_of_a_failing_disk(now)
    for wait_s in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        assert not chunk_requests(bench.settle(now + wait_s - 0.1))
        assert bench.pool.wake_at == now + wait_s
        now += wait_s
        assert chunk_requests(bench.settle(now))
        bench.deliver(AUTHOR, BLOB, BYTES)
        bench.pool.refetch_whole(BLOB.digest, now)


def test_an_offer_that_is_repeated_does_not_fetch_a_lost_blob_sooner() -> None:
    bench = bench_of_a_failing_disk(100.0)

    assert not chunk_requests(bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB), now=100.5))
    assert chunk_requests(bench.settle(101.0))


def test_a_lost_update_of_a_closed_round_is_fetched_at_once_and_not_acknowledged_again() -> None:
    """The aggregate needs all updates at the same time, on a disk that would lose them again."""
    bench = bench_of_a_failing_disk(100.0)
    bench.pool.set_round(Round(1))
    bench.pool.need((Round(1), AUTHOR), BLOB.digest, (AUTHOR,))

    assert chunk_requests(bench.settle(100.1))
    assert not acks_sent(bench.deliver(AUTHOR, BLOB, BYTES))
    assert bench.pool.has(BLOB.digest)


def test_a_lost_blob_that_is_no_longer_kept_is_not_fetched() -> None:
    bench = bench_of_a_failing_disk(100.0)
    bench.pool.set_round(Round(10))

    assert not chunk_requests(bench.settle(101.0))
    assert bench.pool.wake_at is None


def test_a_lost_model_that_is_computed_meanwhile_is_not_fetched() -> None:
    bench = PoolBench(SMALL)
    for _ in range(2):
        bench.pool.keep_model(Round(0), SMALL.initial)
        bench.pool.refetch_whole(SMALL.initial.digest, 100.0)
    bench.pool.keep_model(Round(0), SMALL.initial)

    assert not chunk_requests(bench.settle(101.0))
    assert bench.pool.stored["fetches"] == 0


def test_a_blob_that_is_not_here_cannot_be_lost() -> None:
    bench = PoolBench(SMALL)
    bench.pool.refetch_whole(BLOB.digest, 100.0)

    assert not chunk_requests(bench.settle(100.0))
    assert bench.pool.stored["fetches"] == 0


def test_a_model_that_was_computed_meanwhile_is_fetched_no_more() -> None:
    bench = PoolBench(SMALL)
    bench.pool.need((Round(1), None), BLOB.digest, (AUTHOR,))
    bench.settle()
    assert bench.pool.stored["fetches"] == 1
    bench.pool.keep_model(Round(1), BLOB)

    assert bench.pool.stored["fetches"] == 0


def test_an_offer_that_the_last_epoch_did_not_close_is_fetched_no_more() -> None:
    bench = PoolBench(SMALL)
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    assert bench.pool.stored["fetches"] == 1
    bench.pool.enter(SMALL.federation, ME)

    assert bench.pool.stored["fetches"] == 0


def test_the_oldest_round_of_a_blob_follows_its_labels() -> None:
    """A former member may have it if it took part in that round."""
    index, first, second = BlobIndex(), name("first"), name("second")
    index.label((Round(3), ME), first)
    assert (index.oldest_round(first), index.oldest_round(second)) == (3, None)

    index.label((Round(2), None), first)
    index.label((Round(4), None), second)
    assert (index.oldest_round(first), index.oldest_round(second)) == (2, 4)

    index.expire(Round(2))
    assert index.oldest_round(first) == 3
    index.expire_from(Round(4))
    assert index.oldest_round(second) is None
    index.remove(first)
    assert index.oldest_round(first) is None
