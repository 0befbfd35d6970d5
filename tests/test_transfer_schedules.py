"""Whatever order answers, silence, cuts and announcements come in: a chunk that a connected honest
member holds arrives, and nothing is asked for twice at a time."""

import random

import pytest

from defl.ids import Digest, NodeId, digest_of
from defl.messages import ChunkRequest, Manifest
from defl.pool.choosing import PATIENCE_S, Chooser
from defl.pool.fetch import Fetch
from defl.pool.scatter import scatter_of
from defl.pool.sources import ANSWER_WAIT_MAX_S
from defl.pool.transfer import Transfer
from support.builders import Small, tampered

ME = NodeId(0)
ANSWER_S = 0.3
STEPS = 60
# All that may be waited for after the last disturbance: a silent source's answer and its rest, once
# for each liar, and patience.
SETTLED_S = 4 * ANSWER_WAIT_MAX_S + PATIENCE_S


def manifest_of(number: int, chunks: int) -> Manifest:
    blob, _ = Small().blob(1)
    digests = tuple(digest_of(b"%d of %d" % (index, number)) for index in range(chunks))
    return tampered(blob, chunks=digests)


class Schedule:
    """One node that fetches updates; the last member is honest and answers, the others do what
    comes to their mind."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311
        members = self.rng.randint(3, 5)
        self.chunks = self.rng.choice([1, 2, 3, 9])
        self.members = tuple(NodeId(i) for i in range(members))
        self.honest = self.members[-1]
        self.liars = self.members[1:-1]
        self.transfer = Transfer(ME, self.rng.choice([100, 1_000_000, 10_000_000]))
        self.blobs = {m.digest: m for m in (manifest_of(i, self.chunks) for i in range(2))}
        self.now = 0.0
        self.cut: set[NodeId] = set()
        self.asked: list[tuple[NodeId, Digest, int]] = []  # questions without an answer
        self.answers: list[tuple[float, Digest, int]] = []  # of the honest one, in order
        for digest, manifest in self.blobs.items():
            author = self.rng.choice(self.members[1:])
            scatter = scatter_of(author, self.members, ME, self.chunks)
            self.transfer.want(digest, (author,), manifest, scatter=scatter)
        self.settle()

    # --- What happens ----------------------------------------------------------------------

    def settle(self) -> None:
        for source, request in self.transfer.due(self.now):
            assert isinstance(request, ChunkRequest)
            assert source not in self.cut, "somebody who is not connected was asked"
            if source == self.honest:
                free_at = max([self.now, *(at for at, *_ in self.answers[-1:])])
                self.answers.append((free_at + ANSWER_S, request.digest, request.index))
            else:
                self.asked.append((source, request.digest, request.index))
        self.check()

    def check(self) -> None:
        of_fetches = {
            (digest, index): source
            for digest, fetch in self.transfer._fetches.items()
            for index, source in fetch.asked.items()
        }
        of_sources = [
            (piece, id_) for id_, source in self.transfer._sources.items() for piece in source.asked
        ]
        assert len(of_sources) == len(of_fetches), "a chunk is on its way twice"
        assert dict(of_sources) == of_fetches
        for fetch in self.transfer._fetches.values():
            assert fetch.under_way == sum(1 << index for index in fetch.asked)
            assert sum(fetch.announced) == (1 << self.chunks) - 1
            assert len(fetch.announced) <= len(self.members)

    def bring(self, source: NodeId, digest: Digest, index: int) -> None:
        if self.transfer.expects(digest, index):
            self.transfer.got_chunk(source, digest, index, self.now)

    def advance(self, to: float) -> None:
        while True:
            at = min([to, *(at for at, *_ in self.answers[:1])])
            wake = self.transfer.next_at
            if wake is not None and wake < at:
                self.now = max(self.now, wake)
            else:
                self.now = at
                if self.answers and self.answers[0][0] <= at:
                    _, digest, index = self.answers.pop(0)
                    self.bring(self.honest, digest, index)
                elif at == to:
                    self.settle()
                    return
            self.settle()

    def disturb(self) -> None:
        digest = self.rng.choice(list(self.blobs))
        peer = self.rng.choice(self.members[1:])
        liar = self.rng.choice(self.liars)
        match self.rng.randrange(9):
            case 0:
                self.advance(self.now + self.rng.choice([0.01, 0.3, 1.0, 5.0, 40.0]))
            case 1 | 2 if self.asked:
                self.bring(*self.asked.pop(self.rng.randrange(len(self.asked))))
            case 3 if self.asked:
                source, digest, _ = self.asked.pop()
                self.transfer.failed(source, digest, self.now)
            case 4:
                self.transfer.failed(liar, digest, self.now)
            case 5:
                self.transfer.have(liar, digest, self.rng.getrandbits(self.chunks))
            case 6:
                self.disconnect(peer)
            case 7:
                self.connect(peer)
            case 8 if digest in self.transfer and self.rng.random() < 0.2:
                self.transfer.want(digest, (liar, self.honest), None)
        self.settle()

    def disconnect(self, peer: NodeId) -> None:
        self.cut.add(peer)
        self.transfer.disconnected(peer)
        self.asked = [item for item in self.asked if item[0] != peer]
        if peer == self.honest:
            self.answers.clear()

    def connect(self, peer: NodeId) -> None:
        self.disconnect(peer)
        self.cut.discard(peer)
        self.transfer.connected(peer)


@pytest.mark.parametrize("seed", range(150))
def test_a_chunk_that_a_connected_honest_member_holds_arrives(seed: int) -> None:
    schedule = Schedule(seed)
    for _ in range(STEPS):
        schedule.disturb()
    if schedule.honest in schedule.cut:
        schedule.connect(schedule.honest)
    for digest in schedule.blobs:
        if digest in schedule.transfer:
            schedule.transfer.want(digest, (schedule.honest,), None)  # it acknowledged the update
    schedule.settle()
    schedule.advance(schedule.now + SETTLED_S)

    assert len(schedule.transfer) == 0


# --- Work ------------------------------------------------------------------------------------


class CountingChooser(Chooser):
    """Counts how often a request to a source for a blob is weighed."""

    weighed = 0

    def _available(self, fetch: Fetch, source: NodeId, now: float) -> int:
        self.weighed += 1
        return super()._available(fetch, source, now)


def counting_transfer() -> tuple[Transfer, CountingChooser]:
    transfer = Transfer(ME, 100)
    chooser = CountingChooser(transfer._fetches, transfer._sources)
    transfer._chooser = chooser
    return transfer, chooser


def test_an_event_does_not_weigh_every_request_to_everybody() -> None:
    """100 members, all updates committed, and a third of the members is slow."""
    members = tuple(NodeId(i) for i in range(100))
    transfer, chooser = counting_transfer()
    updates = [manifest_of(i, 8) for i in members[1:]]
    for manifest in updates:
        transfer.want(manifest.digest, members, manifest)
    for slow in members[1:34]:
        transfer._source(slow).chunk_s = ANSWER_WAIT_MAX_S
    requests = transfer.due(0.0)
    fast = [(source, asked) for source, asked in requests if source >= 34]

    for source, asked in fast[:20]:
        chooser.weighed = 0
        assert isinstance(asked, ChunkRequest)
        transfer.got_chunk(source, asked.digest, asked.index, 0.1)
        transfer.due(0.1)
        assert chooser.weighed <= 4 * len(updates)


def test_an_announcement_weighs_its_own_blob_alone() -> None:
    transfer, chooser = counting_transfer()
    updates = [manifest_of(i, 8) for i in range(6)]
    for manifest in updates:
        transfer.want(manifest.digest, (NodeId(1), NodeId(2)), manifest)
        transfer.have(NodeId(3), manifest.digest, 0b1)
    transfer.due(0.0)
    chooser.weighed = 0

    transfer.have(NodeId(3), updates[5].digest, 0b10)
    transfer.due(0.0)

    assert 0 < chooser.weighed <= 4  # a share? another chunk? And once more, for the next request


def test_announcements_without_news_and_repeated_offers_make_no_work() -> None:
    blob = manifest_of(0, 8)
    transfer, chooser = counting_transfer()
    scatter = scatter_of(NodeId(1), (ME, NodeId(1), NodeId(2)), ME, 8)
    for _ in range(2):
        transfer.want(blob.digest, (NodeId(1),), blob, scatter=scatter)
        transfer.have(NodeId(2), blob.digest, 0b1111)
        transfer.due(0.0)
    chooser.weighed = 0

    transfer.want(blob.digest, (NodeId(1),), blob, scatter=scatter)
    transfer.have(NodeId(2), blob.digest, 0b1111)

    assert transfer.due(0.0) == []
    assert chooser.weighed == 0


def test_waits_that_end_one_after_the_other_make_one_look_at_everything() -> None:
    """Liars that state again and again that they hold nothing rest, each until another time."""
    members = tuple(NodeId(i) for i in range(20))
    transfer = Transfer(ME, 100)
    blob = manifest_of(0, 1)
    transfer.want(blob.digest, members, blob)
    for liar in members[1:]:
        transfer.failed(liar, blob.digest, 0.001 * liar)
        transfer.due(0.001 * liar)
    looks = 0
    while (now := transfer.next_at) is not None and now < 4.2:
        looks += 1
        transfer.due(now)

    assert looks <= 2
