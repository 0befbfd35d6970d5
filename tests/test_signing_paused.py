"""A pause in signing gives nobody a signature: a node judges what waited as usual when the pause
ends, since the member that ends the pause may be Byzantine.
"""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from defl.ids import NodeId, Round, digest_of
from defl.messages import Manifest, Pace, StoreAck
from defl.output import (
    Envelope,
    Output,
    PeerMisbehaved,
    Received,
    ReceivedChunk,
    Tick,
    Trained,
    Validate,
    Validated,
    WorkFailed,
)
from defl.participant import Participant
from defl.pool.pool import PoolEffects
from defl.recall import NOTHING_SEEN
from support.benches import ME, ClientBench, PoolBench, acks_sent, chunk_requests, sent
from support.builders import Small, nodes

SMALL = Small()  # n = 4, q = 3, tau = 2; a blob has two chunks: 256 and 144 bytes
AUTHOR, OTHER = NodeId(1), NodeId(2)
BLOB, BYTES = SMALL.blob(1)
BLOB_2, BYTES_2 = SMALL.blob(2)
NAN_BYTES = b"\x00\x00\xc0\x7f" + BYTES[4:]
NAN = replace(BLOB, chunks=(digest_of(NAN_BYTES[:256]), BLOB.chunks[1]))


def paused() -> PoolBench:
    """A pool that signs nothing for now."""
    bench = PoolBench(SMALL)
    bench.pool.muted = True
    return bench


def resume(bench: PoolBench) -> PoolEffects:
    """The node may sign from now on."""
    bench.pool.muted = False
    bench.pool.resume()
    return bench.settle()


def offered(bench: PoolBench, author: int, manifest: Manifest, payload: bytes) -> None:
    """A member offers an update and delivers all of it."""
    bench.receive(author, SMALL.offer(author, 1, manifest))
    if not bench.pool.has(manifest.digest):
        bench.deliver(author, manifest, payload)


# --- Acks ------------------------------------------------------------------------------------


def test_an_update_that_is_being_checked_when_the_pause_ends_is_acknowledged_after_its_check() -> (
    None
):
    bench = paused()
    offered(bench, AUTHOR, BLOB, BYTES)

    resumed = resume(bench)

    assert not resumed.acks
    assert not resumed.work, "the check is under way"
    (ack,) = bench.validate(BLOB.digest).acks
    assert ack.digest == BLOB.digest


def test_a_malformed_update_that_waited_for_the_end_of_the_pause_is_never_acknowledged() -> None:
    bench = paused()
    offered(bench, AUTHOR, NAN, NAN_BYTES)

    assert not resume(bench).acks
    done = bench.validate(NAN.digest)
    assert not done.acks
    assert done.drop == [NAN.digest]
    assert [type(notice) for notice in done.notices] == [PeerMisbehaved]
    assert not resume(bench).acks


def test_an_update_whose_check_ended_during_the_pause_is_acknowledged_at_once_afterwards() -> None:
    bench = paused()
    offered(bench, AUTHOR, BLOB, BYTES)
    assert not bench.validate(BLOB.digest).acks
    assert not bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB)).work, "one check is enough"

    resumed = resume(bench)

    (ack,) = resumed.acks
    assert sent(resumed, StoreAck) == [((AUTHOR,), ack)]
    assert not resumed.work
    assert list(bench.disk.acks.values()) == [ack]


def test_a_check_that_could_not_run_during_the_pause_is_requested_again_at_its_end() -> None:
    bench = paused()
    offered(bench, AUTHOR, BLOB, BYTES)
    bench.pool.not_validated(BLOB.digest)

    resumed = resume(bench)

    assert not resumed.acks
    assert resumed.work == [Validate(BLOB)]
    assert len(bench.validate(BLOB.digest).acks) == 1


def test_one_check_is_enough_for_two_authors_of_the_same_update() -> None:
    bench = paused()
    offered(bench, AUTHOR, BLOB, BYTES)
    bench.validate(BLOB.digest)
    offered(bench, OTHER, BLOB, BYTES)

    assert [ack.author for ack in resume(bench).acks] == [AUTHOR, OTHER]


def test_two_authors_of_the_same_malformed_update_are_both_refused() -> None:
    bench = paused()
    offered(bench, AUTHOR, NAN, NAN_BYTES)
    offered(bench, OTHER, NAN, NAN_BYTES)
    assert not resume(bench).acks

    done = bench.validate(NAN.digest)

    assert not done.acks
    assert [notice.peer for notice in done.notices] == [AUTHOR, OTHER]
    for author in (AUTHOR, OTHER):
        again = bench.receive(author, SMALL.offer(author, 1, NAN))
        assert not again.work + again.send + again.acks


@pytest.mark.parametrize("pause", [True, False])
def test_an_update_replaced_by_a_committed_one_is_not_acknowledged(pause: bool) -> None:
    """The bytes are still here under another author's name, and are not kept for this one."""
    bench = PoolBench(SMALL)
    bench.pool.muted = pause
    offered(bench, OTHER, BLOB, BYTES)
    offered(bench, AUTHOR, BLOB, BYTES)
    bench.pool.need((Round(1), AUTHOR), BLOB_2.digest, nodes(3))
    checked = bench.validate(BLOB.digest)

    assert [ack.author for ack in [*checked.acks, *resume(bench).acks]] == [OTHER]


@pytest.mark.parametrize("author", [ME, AUTHOR])
def test_a_replaced_update_is_not_fetched_at_the_end_of_the_pause(author: NodeId) -> None:
    """Nothing would ever delete it. Another update of this node is committed if its key was used
    twice."""
    bench = paused()
    bench.receive(AUTHOR, SMALL.offer(author, 1, BLOB))
    bench.pool.need((Round(1), author), BLOB_2.digest, nodes(3))
    bench.settle()

    resume(bench)
    bench.settle(1000.0)

    assert bench.pool.stored["fetches"] == 1, "that of the committed one"


def test_checked_bytes_that_were_lost_and_fetched_back_need_no_second_check() -> None:
    """Each chunk is named by its hash, so other bytes are not accepted in its place."""
    bench = paused()
    offered(bench, AUTHOR, BLOB, BYTES)
    bench.validate(BLOB.digest)
    bench.pool.refetch(BLOB.digest, (0,))
    assert not resume(bench).acks, "there is no ack without the bytes"

    wrong = bench.chunk(AUTHOR, BLOB.digest, 0, NAN_BYTES[:256], now=1.0)
    assert [type(notice) for notice in wrong.notices] == [PeerMisbehaved]
    assert not wrong.acks
    back = bench.chunk(OTHER, BLOB.digest, 0, BYTES[:256], now=10.0)

    assert [ack.author for ack in back.acks] == [AUTHOR]
    assert not back.work


def test_a_blob_that_loses_bytes_during_its_check_is_checked_again() -> None:
    bench = paused()
    offered(bench, AUTHOR, BLOB, BYTES)
    bench.pool.refetch(BLOB.digest, (1,))
    bench.pool.validated(BLOB.digest, None)
    assert not resume(bench).acks

    back = bench.chunk(AUTHOR, BLOB.digest, 1, BYTES[256:])

    assert not back.acks
    assert back.work == [Validate(BLOB)]


def test_a_blob_that_was_dropped_is_checked_again_when_it_comes_back() -> None:
    bench = paused()
    offered(bench, AUTHOR, BLOB, BYTES)
    bench.validate(BLOB.digest)
    bench.pool.need((Round(1), AUTHOR), BLOB_2.digest, nodes(3))
    assert bench.settle().drop == [BLOB.digest]
    offered(bench, OTHER, BLOB, BYTES)

    assert not resume(bench).acks
    assert [ack.author for ack in bench.validate(BLOB.digest).acks] == [OTHER]


def test_an_ack_from_before_a_restart_is_sent_again_at_the_end_of_the_pause() -> None:
    bench = PoolBench(SMALL)
    (ack,) = bench.acknowledge(AUTHOR, 1, BLOB, BYTES).acks
    bench.restart()
    bench.pool.muted = True
    assert not acks_sent(bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB)))

    resumed = resume(bench)

    assert acks_sent(resumed) == [ack]
    assert not resumed.acks, "it is not a new one"


def test_an_ack_from_before_a_restart_says_nothing_about_another_authors_equal_update() -> None:
    """And the ack is not sent again while bytes are missing, even if a check ends meanwhile."""
    bench = PoolBench(SMALL)
    bench.acknowledge(AUTHOR, 1, BLOB, BYTES)
    bench.restart()
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))

    assert bench.receive(OTHER, SMALL.offer(2, 1, BLOB)).work == [Validate(BLOB)]
    bench.pool.refetch(BLOB.digest, (0,))
    bench.pool.validated(BLOB.digest, None)
    done = bench.settle()
    assert not acks_sent(done)


def test_an_own_offer_that_a_peer_shows_is_checked_before_it_is_acknowledged() -> None:
    """The offer is newer than this disk's state, or somebody else has the key."""
    bench = paused()
    bench.receive(AUTHOR, SMALL.offer(ME, 1, NAN))
    bench.deliver(AUTHOR, NAN, NAN_BYTES)

    assert not resume(bench).acks
    assert not bench.validate(NAN.digest).acks


def test_offers_that_waited_in_one_epoch_are_not_acknowledged_in_the_next() -> None:
    bench = paused()
    offered(bench, AUTHOR, BLOB, BYTES)
    bench.pool.enter(SMALL.federation, ME)
    assert not bench.validate(BLOB.digest).acks

    resumed = resume(bench)

    assert not resumed.acks
    assert not resumed.work


def test_unfinished_fetches_keep_their_sources_at_the_end_of_the_pause() -> None:
    """Members that hold nothing of an update are not asked for it because the pause ended."""
    bench = paused()
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))

    resume(bench)
    later = bench.settle(1000.0)

    assert {peer for peer, _ in chunk_requests(later)} <= {AUTHOR}


# --- UPDs ------------------------------------------------------------------------------------


def test_an_update_with_a_quorum_of_acks_is_certified_when_the_pause_ends() -> None:
    bench = PoolBench(SMALL)
    offer = bench.publish(1, BLOB, BYTES).offer
    assert offer is not None
    bench.restart()
    bench.pool.muted = True
    certified = [upd for m in (1, 2, 3) for upd in bench.receive(m, SMALL.ack(m, offer)).certified]
    assert certified == [], "a UPD is a signature too"
    assert [bench.pool.acks_from(NodeId(m)) for m in (1, 2, 3)] == [
        (SMALL.ack(m, offer),) for m in (1, 2, 3)
    ], "other members ask for these"

    (upd,) = resume(bench).certified

    SMALL.verifier().verify(upd)
    assert resume(bench).certified == [], "once"


# --- A whole node ----------------------------------------------------------------------------


@pytest.fixture
def node() -> Participant:
    """Has just started: it may sign when q - 1 = 2 others have answered, and one has."""
    node = Participant(SMALL.federation, ME, SMALL.signers[ME], SMALL.durable())
    node.handle(Tick(), 0.0)
    node.handle(Received(NodeId(3), NOTHING_SEEN), 0.1)
    return node


def deliver(node: Participant, manifest: Manifest, payload: bytes) -> Output:
    node.handle(Received(AUTHOR, SMALL.offer(1, 1, manifest)), 0.2)
    for index, data in enumerate((payload[:256], payload[256:])):
        chunk = ReceivedChunk(AUTHOR, manifest.digest, index, data, digest_of(data))
        output = node.handle(chunk, 0.3)
    return output


def acks_in(output: Output) -> list[StoreAck]:
    envelopes = [item for item in output.send if isinstance(item, Envelope)]
    acks = [item.message for item in envelopes if isinstance(item.message, StoreAck)]
    assert list(output.persist.acks if output.persist is not None else ()) == acks
    return acks


def test_the_author_of_a_malformed_update_gets_no_ack_by_ending_the_pause(
    node: Participant,
) -> None:
    """The author answers last, while its update is being checked."""
    assert deliver(node, NAN, NAN_BYTES).work == (Validate(NAN),)

    assert acks_in(node.handle(Received(AUTHOR, NOTHING_SEEN), 0.4)) == []
    assert not node.replica.muted

    refused = node.handle(Validated(NAN.digest, "it holds NaN"), 0.5)
    assert acks_in(refused) == []
    assert refused.drop == (NAN.digest,)


def test_an_honest_update_checked_during_the_pause_is_acknowledged_by_the_last_answer(
    node: Participant,
) -> None:
    deliver(node, BLOB, BYTES)
    assert acks_in(node.handle(Validated(BLOB.digest, None), 0.35)) == []

    (ack,) = acks_in(node.handle(Received(AUTHOR, NOTHING_SEEN), 0.4))
    assert ack.digest == BLOB.digest


def test_a_check_that_failed_to_run_during_the_pause_loses_no_honest_update(
    node: Participant,
) -> None:
    deliver(node, BLOB, BYTES)
    node.handle(WorkFailed(Validate(BLOB), "out of memory"), 0.35)

    resumed = node.handle(Received(AUTHOR, NOTHING_SEEN), 0.4)
    assert Validate(BLOB) in resumed.work
    assert len(acks_in(node.handle(Validated(BLOB.digest, None), 0.5))) == 1


# --- The node's own pace ---------------------------------------------------------------------


def own_paces(bench: ClientBench, now: float) -> Iterator[int]:
    for item in bench.at(now).send:
        if isinstance(item.message, Pace):
            yield item.message.milliseconds


def test_the_length_of_a_pause_does_not_count_as_this_nodes_pace() -> None:
    """Others decide when it ends. Otherwise the node would ask them to wait that long for it."""
    bench = ClientBench()
    bench.to_round(1, now=1.0)
    bench.client.muted = True
    bench.at(1.0)
    manifest, _ = bench.small.blob(1, bench.model.digest)
    bench.client.trained(Trained(Round(2), manifest), 2.5)
    bench.client.muted = bench.pool.muted = False
    bench.at(601.0)
    assert bench.pool.offer_for(Round(2)) is not None, "the update is offered now"

    bench.close_round(1, 2, 3, now=602.0)

    (stated_ms,) = own_paces(bench, 602.0)
    assert 1500 <= stated_ms <= 2500, "the training, perhaps the transfer, and not the pause"
