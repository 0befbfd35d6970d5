"""Updates on their way to all: shares, announcements, and waits that follow each source's rate."""

import pytest

from defl.ids import NodeId
from defl.messages import ChunkRequest, Have, Manifest, ManifestRequest
from defl.output import (
    Connected,
    Disconnected,
    Envelope,
    Event,
    PeerMisbehaved,
    Received,
    Tick,
)
from defl.participant import Participant
from defl.pool.announcing import HAVE_EVERY_S, bitmap_of_chunks, chunks_in
from defl.pool.choosing import FAST_S, LOOK_AGAIN_S, PATIENCE_S
from defl.pool.fetch import Fetch
from defl.pool.pool import PoolEffects
from defl.pool.scatter import Scatter, scatter_of
from defl.pool.sources import ANSWER_WAIT_S, FIRST_BYTES_PER_S, IN_FLIGHT_MAX
from defl.pool.transfer import Transfer
from support.benches import ME, PoolBench, chunk_requests, sent
from support.builders import Small, nodes

CHUNKS = 12
SMALL = Small(values=64 * CHUNKS)  # n = 4: chunks 0, 3, 6, 9 of member 1's update are member 2's
BLOB, BYTES = SMALL.blob(1)
OTHER_BLOB, OTHER_BYTES = SMALL.blob(2)
AUTHOR, NEXT, LAST = nodes(1, 2, 3)
SCATTER = Scatter(AUTHOR, (NEXT, LAST, ME), CHUNKS)
MY_SHARE, SHARE_OF_NEXT, SHARE_OF_LAST = {2, 5, 8, 11}, {0, 3, 6, 9}, {1, 4, 7, 10}
SLOW_S = 10.0  # a chunk of a slow author


def bitmap(chunks: set[int]) -> int:
    return sum(1 << index for index in chunks)


def indexes(chunks: int) -> set[int]:
    return {index for index in range(CHUNKS) if chunks >> index & 1}


def announcement(chunks: set[int]) -> Have:
    return Have(BLOB.digest, bitmap_of_chunks(bitmap(chunks), CHUNKS))


class OneNode:
    """A whole participant, and whom it asks for chunks."""

    def __init__(self, small: Small) -> None:
        self._small = small
        self._participant = Participant(small.federation, ME, small.signers[ME], small.durable())
        self._sent: tuple[object, ...] = ()
        self.handle(Tick())

    def handle(self, event: Event) -> None:
        self._sent = self._participant.handle(event, 0.0).send

    def offer(self, author: NodeId, round_: int, manifest: Manifest) -> None:
        self.handle(Received(author, self._small.offer(author, round_, manifest)))

    def asked(self) -> set[NodeId]:
        """By its last decision."""
        return {
            peer
            for item in self._sent
            if isinstance(item, Envelope) and isinstance(item.message, ChunkRequest)
            for peer in item.to or ()
        }


class Fetching:
    """This node's transfer, with the requests that were sent and are not answered."""

    def __init__(self, first_s: float = SLOW_S, scatter: Scatter | None = SCATTER) -> None:
        self.transfer = Transfer(ME, int(first_s * FIRST_BYTES_PER_S))
        self.scatter = scatter
        self.now = 0.0
        self.open: list[tuple[NodeId, int]] = []

    def want(self, *sources: NodeId) -> None:
        self.transfer.want(BLOB.digest, sources, BLOB, frozenset(), self.scatter)
        self.settle()

    def settle(self, at: float | None = None) -> list[tuple[NodeId, int]]:
        self.now = self.now if at is None else at
        new = [
            (source, request.index)
            for source, request in self.transfer.due(self.now)
            if isinstance(request, ChunkRequest)
        ]
        self.open.extend(new)
        return new

    def answer(self, source: NodeId, after: float) -> list[tuple[NodeId, int]]:
        """The oldest request of this source is answered so much later."""
        index = next(index for asked, index in self.open if asked == source)
        self.open.remove((source, index))
        self.now += after
        self.transfer.got_chunk(source, BLOB.digest, index, self.now)
        return self.settle()

    def announce(self, peer: NodeId, chunks: set[int]) -> list[tuple[NodeId, int]]:
        self.transfer.have(peer, BLOB.digest, bitmap(chunks))
        return self.settle()


def fetching_slowly() -> Fetching:
    """The author has sent this node's whole share, a chunk each ten seconds."""
    fetching = Fetching()
    fetching.want(AUTHOR)
    for _ in MY_SHARE:
        fetching.answer(AUTHOR, SLOW_S)
    return fetching


# --- Shares ----------------------------------------------------------------------------------


def test_the_receivers_of_an_update_divide_its_chunks() -> None:
    scatter = scatter_of(AUTHOR, nodes(0, 1, 2, 3), ME, CHUNKS)

    assert scatter == SCATTER
    assert [indexes(SCATTER.share_of(m)) for m in (ME, NEXT, LAST)] == [
        MY_SHARE, SHARE_OF_NEXT, SHARE_OF_LAST,
    ]  # fmt: skip


def test_an_author_and_an_outsider_have_no_share() -> None:
    assert scatter_of(ME, nodes(0, 1, 2, 3), ME, CHUNKS) is None
    assert scatter_of(AUTHOR, nodes(1, 2, 3), ME, CHUNKS) is None


def test_every_receiver_has_a_share_even_of_fewer_chunks() -> None:
    scatter = Scatter(AUTHOR, (NEXT, LAST, ME), 2)

    assert [indexes(scatter.share_of(m)) for m in (NEXT, LAST, ME)] == [{0}, {1}, {0}]


def test_the_chunks_of_a_member_that_is_away_are_divided_among_the_others() -> None:
    mine, theirs = (indexes(SCATTER.share_of(m, {NEXT})) for m in (ME, LAST))

    assert mine | theirs == set(range(CHUNKS))
    assert not mine & theirs
    assert len(mine) == len(theirs)


# --- From a slow author ----------------------------------------------------------------------


def test_a_slow_author_is_asked_for_this_nodes_share_alone() -> None:
    fetching = fetching_slowly()

    assert indexes(~fetching_missing(fetching)) == MY_SHARE
    assert fetching.open == []


def fetching_missing(fetching: Fetching) -> int:
    expected = (i for i in range(CHUNKS) if fetching.transfer.expects(BLOB.digest, i))
    return bitmap(set(expected))


def test_a_fast_author_is_asked_for_everything_at_once() -> None:
    fetching = Fetching()
    fetching.want(AUTHOR)
    assert len(fetching.open) == 1, "how fast it is must be seen first"

    asked: set[int] = {index for _, index in fetching.open}
    while fetching.open:
        asked |= {index for _, index in fetching.answer(AUTHOR, FAST_S / 10)}

    assert asked == set(range(CHUNKS))


def test_a_fast_author_is_asked_for_this_nodes_share_first() -> None:
    fetching = Fetching(first_s=FAST_S / 4)
    fetching.want(AUTHOR)
    order = [index for _, index in fetching.open]
    while fetching.open:
        order += [index for _, index in fetching.answer(AUTHOR, FAST_S / 4)]

    assert set(order[: len(MY_SHARE)]) == MY_SHARE


def test_members_begin_at_different_chunks() -> None:
    """Of a share that nobody passes on, each fetches another chunk from the author."""
    firsts = [
        Fetch(BLOB, announced=[(1 << CHUNKS) - 1], scatter=SCATTER, place=place).rarest(
            bitmap(SHARE_OF_LAST)
        )
        for place in range(3)
    ]

    assert len(set(firsts)) == 3


def test_announced_chunks_are_fetched_from_their_announcer() -> None:
    fetching = fetching_slowly()

    new = fetching.announce(NEXT, SHARE_OF_NEXT)

    assert {source for source, _ in new} == {NEXT}
    assert {index for _, index in new} <= SHARE_OF_NEXT


def test_the_rarest_announced_chunk_is_fetched_first() -> None:
    fetching = Fetching(first_s=SLOW_S)
    fetching.want(AUTHOR)
    fetching.announce(LAST, {6})
    fetching.transfer.disconnected(LAST)
    ((source, index),) = fetching.announce(NEXT, {3, 6})

    assert (source, index) == (NEXT, 3), "member 3 has announced the other one too"


def test_shares_that_nobody_announces_are_fetched_from_the_author_in_the_end() -> None:
    fetching = fetching_slowly()
    patience_s = PATIENCE_S + SLOW_S

    until = fetching.now + patience_s
    assert fetching.transfer.next_at == pytest.approx(until)
    assert fetching.settle(until - 0.1) == []
    ((source, index),) = fetching.settle(until)
    assert source == AUTHOR
    assert index not in MY_SHARE


def test_the_share_of_a_member_that_is_away_is_not_waited_for() -> None:
    fetching = fetching_slowly()

    fetching.transfer.disconnected(NEXT)

    ((source, index),) = fetching.settle()
    assert source == AUTHOR
    assert index in SHARE_OF_NEXT
    fetching.transfer.connected(NEXT)
    fetching.answer(AUTHOR, SLOW_S)
    assert fetching.open == [], "it is back and fetches its share itself"


def test_a_committed_update_is_fetched_from_all_its_holders() -> None:
    fetching = fetching_slowly()

    fetching.scatter = None
    fetching.want(AUTHOR, NEXT, LAST)

    assert {source for source, _ in fetching.open} == {NEXT, LAST, AUTHOR}


def test_an_update_is_fetched_from_its_author_alone_once_the_epoch_has_ended() -> None:
    """Members no longer announce its chunks, so waiting for the shares of others is wasted time."""
    fetching = fetching_slowly()
    assert fetching.settle() == []
    fetching.transfer.enter(ME, nodes(0, 1, 2, 3))

    assert {source for source, _ in fetching.settle()} == {AUTHOR}


# --- Broken promises -------------------------------------------------------------------------


def test_an_announcer_that_is_silent_loses_its_place_as_a_source_of_the_blob() -> None:
    fetching = fetching_slowly()
    ((_, index),) = fetching.announce(NEXT, SHARE_OF_NEXT)

    overdue_at = fetching.now + ANSWER_WAIT_S + 4 * SLOW_S
    new = fetching.settle(overdue_at)

    assert new == [(AUTHOR, index)], "nobody else has it"
    assert fetching.announce(NEXT, SHARE_OF_NEXT | SHARE_OF_LAST) == []
    assert NEXT not in {source for source, _ in fetching.settle(overdue_at + 1000)}


def test_an_announcer_that_holds_nothing_loses_its_place_at_once() -> None:
    fetching = fetching_slowly()
    fetching.announce(NEXT, SHARE_OF_NEXT)

    fetching.transfer.failed(NEXT, BLOB.digest, fetching.now)

    assert fetching.announce(NEXT, SHARE_OF_NEXT) == []


def test_an_announcer_that_acknowledged_the_update_rests_and_is_asked_again() -> None:
    """An ack says that the acker holds the update, whatever it announced before: one lost answer
    must not cost the fetch a holder."""
    fetching = fetching_slowly()
    fetching.announce(NEXT, SHARE_OF_NEXT)
    fetching.scatter = None
    fetching.want(NEXT)
    fetching.open.clear()

    fetching.transfer.failed(NEXT, BLOB.digest, fetching.now)
    fetching.transfer.disconnected(AUTHOR)

    assert NEXT not in {source for source, _ in fetching.settle()}
    assert NEXT in {source for source, _ in fetching.settle(fetching.now + ANSWER_WAIT_S)}


def test_a_source_that_keeps_one_chunk_back_is_asked_for_it_no_more() -> None:
    """It sends what was asked for later, so the chunk is not on its way."""
    fetching = Fetching(first_s=0.1, scatter=SCATTER)
    fetching.want(AUTHOR)
    fetching.transfer.disconnected(AUTHOR)
    fetching.open.clear()
    fetching.announce(NEXT, set(range(CHUNKS)))
    kept_back = fetching.open.pop(0)[1]
    while fetching.open:
        fetching.answer(NEXT, 0.1)

    fetching.settle(ANSWER_WAIT_S + 0.5)
    fetching.transfer.connected(AUTHOR)
    assert fetching.settle() == [(AUTHOR, kept_back)]


def test_a_blob_that_a_source_does_not_serve_keeps_no_other_waiting() -> None:
    fetching = Fetching(scatter=None)
    fetching.want(AUTHOR)
    fetching.transfer.want(OTHER_BLOB.digest, (AUTHOR,), OTHER_BLOB)

    fetching.settle(ANSWER_WAIT_S + 4 * SLOW_S)
    rested_at = fetching.transfer.next_at
    assert rested_at is not None
    ((_, request),) = fetching.transfer.due(rested_at)

    assert request.digest == OTHER_BLOB.digest


# --- Rates -----------------------------------------------------------------------------------


def test_a_chunk_is_not_requested_twice_while_it_is_on_its_way() -> None:
    """Ten seconds a chunk: longer than any fixed wait, but answers keep coming."""
    fetching = Fetching(first_s=SLOW_S, scatter=None)
    fetching.want(AUTHOR, NEXT)
    asked = [index for _, index in fetching.open]
    while fetching.open:
        asked += [index for _, index in fetching.answer(fetching.open[0][0], SLOW_S)]

    assert sorted(asked) == list(range(CHUNKS))


def test_the_wait_for_a_slow_source_is_not_forgotten_with_the_blob() -> None:
    fetching = Fetching(first_s=0.1, scatter=None)
    fetching.want(AUTHOR)
    while fetching.open:
        fetching.answer(AUTHOR, SLOW_S)

    fetching.transfer.want(OTHER_BLOB.digest, (AUTHOR,), OTHER_BLOB)
    ((_, index),) = fetching.settle()

    assert index == 0
    assert fetching.transfer.next_at is not None
    assert fetching.transfer.next_at > fetching.now + 2 * SLOW_S


def test_a_fast_source_has_several_requests_and_a_slow_one_a_single_one() -> None:
    fetching = Fetching(first_s=0.01, scatter=None)
    fetching.want(AUTHOR)
    assert len(fetching.open) == IN_FLIGHT_MAX

    for _ in range(IN_FLIGHT_MAX - 1):
        fetching.answer(AUTHOR, SLOW_S)

    assert len(fetching.open) == 1


def test_requests_of_all_blobs_share_the_room_at_a_source() -> None:
    fetching = Fetching(first_s=SLOW_S, scatter=None)
    fetching.want(AUTHOR)
    fetching.transfer.want(OTHER_BLOB.digest, (AUTHOR,), OTHER_BLOB)

    assert fetching.settle() == []


def test_a_source_that_is_much_slower_than_the_others_is_left_alone() -> None:
    fetching = Fetching(first_s=0.1, scatter=None)
    fetching.transfer.want(OTHER_BLOB.digest, (AUTHOR,), OTHER_BLOB)
    fetching.settle()
    for index in range(CHUNKS):
        fetching.now += 100.0
        fetching.transfer.got_chunk(AUTHOR, OTHER_BLOB.digest, index, fetching.now)
    fetching.open.clear()

    fetching.want(AUTHOR, NEXT)
    while fetching.open:
        assert fetching.open[0][0] == NEXT
        fetching.answer(NEXT, 0.1)

    assert BLOB.digest not in fetching.transfer


def test_the_last_chunk_is_requested_though_others_together_are_faster() -> None:
    """Three equal sources could share it, if a chunk could be divided."""
    fetching = Fetching(first_s=1.0, scatter=None)
    fetching.transfer.want(BLOB.digest, (AUTHOR, NEXT, LAST), BLOB, frozenset(range(1, CHUNKS)))

    assert len(fetching.settle()) == 1


def test_a_queue_of_requests_does_not_make_a_source_slow() -> None:
    """Each answer comes soon after the one before, the last one long after its request."""
    fetching = Fetching(first_s=0.05, scatter=None)
    fetching.want(AUTHOR)
    assert len(fetching.open) == IN_FLIGHT_MAX
    for _ in range(IN_FLIGHT_MAX):
        fetching.answer(AUTHOR, FAST_S / 2)

    assert not fetching.transfer.is_slow(AUTHOR)


def test_a_slow_source_that_was_left_alone_is_asked_when_the_faster_one_is_gone() -> None:
    fetching = Fetching(first_s=0.01, scatter=None)
    fetching.transfer.want(OTHER_BLOB.digest, (NEXT,), OTHER_BLOB)
    fetching.settle()
    fetching.transfer._source(AUTHOR).chunk_s = 100.0
    fetching.want(AUTHOR, NEXT)
    assert {source for source, _ in fetching.open} == {NEXT}

    fetching.transfer.disconnected(NEXT)
    fetching.settle()

    assert (fetching.transfer.next_at or 0.0) <= LOOK_AGAIN_S
    assert [source for source, _ in fetching.settle(LOOK_AGAIN_S)] == [AUTHOR]


def test_many_requests_that_find_nothing_are_one_failure() -> None:
    fetching = Fetching(first_s=0.01, scatter=None)
    fetching.want(AUTHOR)
    for _ in list(fetching.open):
        fetching.transfer.failed(AUTHOR, BLOB.digest, fetching.now)

    assert fetching.settle(ANSWER_WAIT_S)


# --- Links that end --------------------------------------------------------------------------


def test_requests_that_were_lost_with_a_link_are_sent_again_when_it_is_back() -> None:
    fetching = Fetching(scatter=None)
    fetching.want(AUTHOR)
    lost = list(fetching.open)
    assert fetching.settle(1.0) == []

    fetching.transfer.connected(AUTHOR)

    assert fetching.settle(1.0) == lost


def test_a_member_that_was_never_there_is_asked_for_what_others_leave() -> None:
    """A new machine hears of members that may be dead."""
    fetching = Fetching(first_s=0.01, scatter=None)
    fetching.transfer.connected(NEXT)

    fetching.transfer.want(OTHER_BLOB.digest, (AUTHOR, NEXT), None)
    fetching.transfer.want(BLOB.digest, (AUTHOR, NEXT), BLOB, frozenset(range(2, CHUNKS)))

    requests = fetching.transfer.due(0.0)
    assert [type(request) for _, request in requests] == [ManifestRequest, *2 * [ChunkRequest]]
    assert {source for source, _ in requests} == {NEXT}


def test_a_source_that_is_not_connected_is_not_asked() -> None:
    fetching = Fetching(scatter=None)
    fetching.want(AUTHOR, NEXT)
    lost = {index for source, index in fetching.open if source == AUTHOR}
    fetching.transfer.disconnected(AUTHOR)
    new = fetching.settle()
    while fetching.transfer.expects(BLOB.digest, min(lost)):
        new += fetching.answer(NEXT, 1.0)

    assert {source for source, _ in new} == {NEXT}


def test_a_source_that_breaks_off_again_and_again_is_left_for_another() -> None:
    """It reconnects before anybody else is asked."""
    fetching = Fetching(first_s=1.0, scatter=None)
    for met in (AUTHOR, NEXT):
        fetching.transfer.connected(met)
    fetching.transfer.want(BLOB.digest, (AUTHOR, NEXT), BLOB, frozenset(range(1, CHUNKS)))
    ((source, index),) = fetching.settle()

    fetching.transfer.connected(source)

    ((other, again),) = fetching.settle()
    assert other != source
    assert again == index


def test_connections_reach_the_transfer() -> None:
    small = Small()
    node = OneNode(small)
    node.offer(AUTHOR, 1, small.blob(1)[0])
    assert node.asked() == {AUTHOR}

    node.handle(Disconnected(AUTHOR))
    node.offer(AUTHOR, 2, small.blob(2)[0])
    assert node.asked() == set()
    node.handle(Connected(AUTHOR))
    assert node.asked() == {AUTHOR}
    node.handle(Connected(AUTHOR))
    assert node.asked() == {AUTHOR}, "what was requested before is lost"


# --- Announcements ---------------------------------------------------------------------------


def offered_bench() -> PoolBench:
    bench = PoolBench(SMALL)
    bench.receive(AUTHOR, SMALL.offer(AUTHOR, 1, BLOB))
    return bench


def store(bench: PoolBench, index: int, now: float) -> PoolEffects:
    data = BYTES[256 * index : 256 * (index + 1)]
    return bench.chunk(AUTHOR, BLOB.digest, index, data, now)


def test_chunks_are_announced_now_and_then_to_those_that_may_lack_them() -> None:
    bench = offered_bench()

    assert not sent(store(bench, 2, 0.0), Have)
    assert not sent(store(bench, 5, 0.1), Have)
    assert bench.pool.wake_at == HAVE_EVERY_S
    ((to, have),) = sent(bench.settle(HAVE_EVERY_S), Have)

    assert to == (NEXT, LAST), "the author has everything"
    assert have == announcement({2, 5})
    assert sent(bench.settle(10.0), Have) == [], "nothing is new"


def test_who_has_announced_the_same_chunks_is_told_nothing() -> None:
    bench = offered_bench()
    bench.receive(NEXT, announcement({2, 3}))

    store(bench, 2, 0.0)

    ((to, _),) = sent(bench.settle(HAVE_EVERY_S), Have)
    assert to == (LAST,)


def test_a_member_that_was_told_is_told_only_what_is_new() -> None:
    bench = offered_bench()
    store(bench, 2, 0.0)
    bench.settle(HAVE_EVERY_S)
    bench.receive(NEXT, announcement({2, 5}))

    store(bench, 5, HAVE_EVERY_S)

    ((to, have),) = sent(bench.settle(2 * HAVE_EVERY_S), Have)
    assert (to, have) == ((LAST,), announcement({2, 5}))
    store(bench, 8, 2 * HAVE_EVERY_S)
    bench.receive(NEXT, announcement(MY_SHARE), 2 * HAVE_EVERY_S)
    bench.receive(LAST, announcement({8}), 2 * HAVE_EVERY_S)
    assert sent(bench.settle(3 * HAVE_EVERY_S), Have) == [], "all that lacked it have it now"


def test_a_member_that_connects_is_told_again() -> None:
    bench = offered_bench()
    store(bench, 2, 0.0)
    bench.settle(HAVE_EVERY_S)

    bench.pool.disconnected(NEXT)
    bench.pool.connected(NEXT)

    ((to, _),) = sent(bench.settle(2 * HAVE_EVERY_S), Have)
    assert to == (NEXT,)


def test_a_member_that_is_not_connected_is_told_nothing() -> None:
    bench = offered_bench()
    bench.pool.disconnected(NEXT)

    store(bench, 2, 0.0)

    ((to, _),) = sent(bench.settle(HAVE_EVERY_S), Have)
    assert to == (LAST,)


def test_the_share_of_a_slow_author_is_announced_at_once() -> None:
    slow = Small(values=2**19, chunk_bytes=2**18)  # 8 chunks of 256 KiB: slow until it is seen
    blob, payload = slow.blob(1)
    bench = PoolBench(slow)
    bench.receive(AUTHOR, slow.offer(AUTHOR, 1, blob))
    share = indexes(Scatter(AUTHOR, (NEXT, LAST, ME), 8).share_of(ME))
    done = []
    for place, index in enumerate(sorted(share)):
        data = payload[index * 2**18 : (index + 1) * 2**18]
        done += sent(bench.chunk(AUTHOR, blob.digest, index, data, 10 + 0.5 * place), Have)

    assert [to for to, _ in done] == [(NEXT, LAST)]


def test_a_committed_update_is_announced_no_more() -> None:
    bench = offered_bench()
    store(bench, 2, 0.0)

    bench.pool.keep((SMALL.offer(AUTHOR, 1, BLOB).round, AUTHOR), BLOB.digest)

    assert sent(bench.settle(HAVE_EVERY_S), Have) == []


def test_an_announcement_of_an_unknown_blob_is_not_wanted() -> None:
    bench = offered_bench()

    assert bench.pool.wants_have(announcement({0}))
    assert not bench.pool.wants_have(Have(OTHER_BLOB.digest, b"\x01\x00"))


@pytest.mark.parametrize("chunks", [b"\x01", b"\x01\x00\x00", b"\x00\x10"])
def test_an_announcement_that_does_not_fit_the_blob_is_a_fault(chunks: bytes) -> None:
    bench = offered_bench()

    done = bench.receive(NEXT, Have(BLOB.digest, chunks))

    assert [notice.peer for notice in done.notices if isinstance(notice, PeerMisbehaved)] == [NEXT]
    assert NEXT not in {peer for peer, _ in chunk_requests(done)}


def test_a_bitmap_has_one_length_and_no_bits_beyond_the_last_chunk() -> None:
    assert chunks_in(bitmap_of_chunks(0b1011, 9), 9) == 0b1011
    assert chunks_in(b"\xff\x01", 9) == 0x1FF
    assert chunks_in(b"\xff\x02", 9) is None
    assert chunks_in(b"\xff", 9) is None
