"""Fetching and retaining blobs: the choice of sources, and how long blobs are kept."""

import pytest

from defl.ids import NO_DIGEST, OUTSIDER, NodeId, Round, digest_of
from defl.messages import (
    ChunkRequest,
    ManifestAnswer,
    ManifestRequest,
    NotHeld,
)
from defl.output import (
    PeerMisbehaved,
    ServeChunk,
)
from defl.pool.sources import ANSWER_WAIT_S
from defl.pool.transfer import Transfer
from support.benches import PoolBench, acks_sent, chunk_requests, sent
from support.builders import Small, nodes, tampered

SMALL = Small()  # n = 4, q = 3, tau = 2; a blob has two chunks: 256 and 144 bytes
AUTHOR, OTHER = NodeId(1), NodeId(2)
BLOB, BYTES = SMALL.blob(1)
BLOB_2, BYTES_2 = SMALL.blob(2)


# --- Sources ---------------------------------------------------------------------------------


def fetching_bench(sources: tuple[NodeId, ...] = nodes(1, 2, 3)) -> PoolBench:
    """Fetches a committed update that is known only by its digest."""
    bench = PoolBench(SMALL)
    assert not bench.pool.need((Round(1), AUTHOR), BLOB.digest, sources)
    return bench


def test_a_blob_known_only_by_its_digest_is_fetched_by_its_manifest() -> None:
    bench = fetching_bench()
    ((whom, question),) = sent(bench.settle(), ManifestRequest)
    assert question == ManifestRequest(BLOB.digest)
    assert whom == nodes(1)

    answered = bench.receive(1, ManifestAnswer(BLOB))
    assert sorted(chunk for _, chunk in chunk_requests(answered)) == [0, 1]
    bench.deliver(2, BLOB, BYTES)

    assert bench.pool.need((Round(1), AUTHOR), BLOB.digest, nodes(1))
    assert bench.disk.read(BLOB.digest) == BYTES


def test_a_source_that_was_silent_is_not_the_first_to_be_asked_for_a_manifest_when_it_is_back() -> (
    None
):
    """It withholds, and reconnects: its failures are forgiven, but it may take minutes to fail."""
    transfer = Transfer(NodeId(0), 256)
    now = 0.0
    for peer in nodes(1, 2):
        transfer.connected(peer)
    for number in range(8):
        transfer.want(digest_of(bytes([number])), nodes(1), None)
        transfer.due(now)
        transfer.connected(NodeId(1))  # each time before it fails

    transfer.want(BLOB.digest, nodes(1, 2), None)
    assert (NodeId(2), ManifestRequest(BLOB.digest)) in transfer.due(now)


def test_a_machine_that_becomes_a_member_does_not_ask_itself() -> None:
    """Another machine had its id before, and was a source."""
    transfer = Transfer(OUTSIDER, 256)
    transfer.want(BLOB.digest, nodes(0, 1), None)
    assert transfer.due(0.0) == [(NodeId(0), ManifestRequest(BLOB.digest))]

    transfer.enter(NodeId(0), nodes(0, 1, 2, 3))
    transfer.want(BLOB_2.digest, nodes(0), None)

    assert transfer.due(0.0) == [(NodeId(1), ManifestRequest(BLOB.digest))]


def fetching(sources: tuple[NodeId, ...] = nodes(1, 2)) -> tuple[PoolBench, list[tuple[int, int]]]:
    bench = fetching_bench(sources)
    bench.settle()
    return bench, chunk_requests(bench.receive(1, ManifestAnswer(BLOB)))


def test_several_sources_serve_one_blob_at_once() -> None:
    _, questions = fetching()

    assert sorted(questions) == [(1, 0), (2, 1)]


def test_a_withheld_chunk_is_requested_from_the_next_source() -> None:
    bench, _ = fetching()
    bench.chunk(2, BLOB.digest, 1, BYTES[256:])

    assert chunk_requests(bench.settle(ANSWER_WAIT_S - 0.1)) == []
    overdue_at = bench.pool.wake_at
    assert overdue_at is not None
    assert ANSWER_WAIT_S < overdue_at < ANSWER_WAIT_S + 1
    assert chunk_requests(bench.settle(overdue_at)) == [(2, 0)]


def test_a_source_that_does_not_hold_a_blob_is_skipped_at_once() -> None:
    bench, _ = fetching()

    assert chunk_requests(bench.receive(1, NotHeld(BLOB.digest), now=0.1)) == [(2, 0)]


def test_a_failed_source_is_retried_later_if_there_is_no_other() -> None:
    bench, _ = fetching(nodes(1))

    assert chunk_requests(bench.receive(1, NotHeld(BLOB.digest), now=0.0)) == []
    assert bench.pool.wake_at == ANSWER_WAIT_S
    assert chunk_requests(bench.settle(ANSWER_WAIT_S)) == [(1, 0), (1, 1)]


@pytest.mark.parametrize("rubbish", [b"rubbish", bytes(256), BYTES[:255], BYTES[:257], b""])
def test_a_corrupt_chunk_is_refused_and_requested_from_another_source(rubbish: bytes) -> None:
    bench, _ = fetching()

    done = bench.chunk(1, BLOB.digest, 0, rubbish)

    assert not done.store
    assert [notice.peer for notice in done.notices if isinstance(notice, PeerMisbehaved)] == [1]
    assert chunk_requests(done) == [(2, 0)]
    bench.deliver(2, BLOB, BYTES)
    assert bench.disk.read(BLOB.digest) == BYTES


def test_a_chunk_longer_than_a_chunk_is_refused_though_the_manifest_names_it() -> None:
    """No member can make others store more than the schema's size by lying in the manifest."""
    bench = PoolBench(SMALL)
    long = bytes(100_000)
    lying = tampered(BLOB, chunks=(digest_of(long), BLOB.chunks[1]))
    bench.receive(AUTHOR, SMALL.offer(1, 1, lying))

    done = bench.chunk(AUTHOR, lying.digest, 0, long)

    assert not done.store
    assert [type(notice) for notice in done.notices] == [PeerMisbehaved]


def test_unrequested_chunks_are_not_stored() -> None:
    bench = PoolBench(SMALL)

    assert not bench.chunk(1, BLOB.digest, 0, BYTES[:256]).store
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    assert bench.chunk(1, BLOB.digest, 0, BYTES[:256]).store
    assert not bench.chunk(1, BLOB.digest, 0, BYTES[:256]).store, "once is enough"
    assert not bench.chunk(1, BLOB.digest, 2, BYTES[:256]).store


def test_a_fetch_resumes_after_a_restart_with_the_chunks_on_disk() -> None:
    bench = PoolBench(SMALL)
    (ack,) = bench.acknowledge(AUTHOR, 1, BLOB, BYTES).acks
    del bench.disk.blobs[BLOB.digest].chunks[1]

    back = bench.restart()

    assert {chunk for _, chunk in chunk_requests(back)} == {1}
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB), now=100.0)
    assert acks_sent(bench.chunk(1, BLOB.digest, 1, BYTES[256:])) == [ack]


def test_stored_chunks_are_served_and_missing_ones_are_answered_with_not_held() -> None:
    bench = PoolBench(SMALL)
    initial = SMALL.initial.digest

    assert bench.receive(2, ChunkRequest(initial, 1)).send == [ServeChunk(OTHER, initial, 1)]
    assert sent(bench.receive(2, ManifestRequest(initial)), ManifestAnswer)
    for question in (ManifestRequest(BLOB.digest), ChunkRequest(BLOB.digest, 0)):
        assert sent(bench.receive(2, question), NotHeld) == [((OTHER,), NotHeld(BLOB.digest))]


# --- Retention -------------------------------------------------------------------------------


def test_a_committed_update_replaces_the_offered_one() -> None:
    bench = PoolBench(SMALL)
    bench.acknowledge(AUTHOR, 1, BLOB, BYTES)

    bench.pool.need((Round(1), AUTHOR), BLOB_2.digest, nodes(2, 3))
    done = bench.settle()

    assert done.drop == [BLOB.digest]
    assert not bench.pool.has(BLOB.digest)
    assert len(sent(done, ManifestRequest)) == 1
    assert not chunk_requests(bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))), (
        "the old one is not wanted"
    )
    bench.receive(2, ManifestAnswer(BLOB_2))
    bench.deliver(2, BLOB_2, BYTES_2)
    assert bench.pool.has(BLOB_2.digest)


def test_a_blob_is_kept_for_tau_rounds_and_one_of_grace() -> None:
    bench = PoolBench(SMALL)
    bench.acknowledge(AUTHOR, 1, BLOB, BYTES)
    for round_ in (1, 2, 3):
        bench.pool.set_round(Round(round_))
        assert BLOB.digest not in bench.settle().drop
    assert bench.pool.has(BLOB.digest)
    assert bench.pool.stored["acks"] == 0, "round 1 is no longer within tau: no ack is left"

    bench.pool.set_round(Round(4))

    assert bench.settle().drop == [BLOB.digest]
    assert BLOB.digest not in bench.disk.blobs


def test_a_blob_that_two_labels_name_stays_until_the_last_one_goes() -> None:
    bench = PoolBench(SMALL)
    bench.acknowledge(AUTHOR, 1, BLOB, BYTES)
    bench.acknowledge(OTHER, 2, BLOB, BYTES)

    bench.pool.set_round(Round(4))
    assert BLOB.digest not in bench.settle().drop
    bench.pool.set_round(Round(5))
    assert BLOB.digest in bench.settle().drop


def test_one_author_never_occupies_more_than_tau_plus_three_blobs() -> None:
    bench = PoolBench(SMALL)
    most = 0
    for round_ in range(12):
        bench.pool.set_round(Round(round_))
        for target in range(13 + 3):
            for seed in (0, 1):
                manifest, payload = SMALL.blob(100 * target + seed)
                bench.receive(AUTHOR, SMALL.offer(1, target, manifest))
                bench.deliver(AUTHOR, manifest, payload)
        mine = [label for label in bench.pool.labels if label[1] == AUTHOR]
        most = max(most, len(mine))
        held = [blob for blob in bench.disk.blobs.values() if blob.manifest.base != NO_DIGEST]
        assert len(held) <= SMALL.federation.tau + 3

    assert most == SMALL.federation.tau + 3


def test_a_fetch_of_an_expired_blob_is_cancelled() -> None:
    bench = fetching_bench()
    bench.settle()

    bench.pool.set_round(Round(4))

    assert bench.pool.stored["fetches"] == 0
    assert bench.pool.wake_at is None
