"""The life of a blob at one node: acknowledged once, resumed, fetched from others, kept, gone."""

import pytest
from msgspec.structs import replace

from builders import Small, name, nodes, tampered
from defl.ids import NO_DIGEST, Digest, NodeId, Round, digest_of
from defl.messages import (
    ChunkRequest,
    Manifest,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    Offer,
    StoreAck,
    Upd,
)
from defl.output import (
    Durable,
    Envelope,
    EvidenceFound,
    PeerMisbehaved,
    Persist,
    ReceivedChunk,
    ServeChunk,
    Tick,
    Train,
    Trained,
)
from defl.participant import Participant
from defl.pool.pool import Effects, Pool
from defl.pool.transfer import ANSWER_WAIT_S
from defl.sim.disk import Disk
from defl.work import validate

SMALL = Small()  # n = 4, q = 3, tau = 2; a blob has two chunks: 256 and 144 bytes
ME, AUTHOR, OTHER = NodeId(0), NodeId(1), NodeId(2)
BLOB, BYTES = SMALL.blob(1)
BLOB_2, BYTES_2 = SMALL.blob(2)


class Host:
    """One node's pool with its disk; effects are done in the order of duty."""

    def __init__(self, small: Small = SMALL, round_: int = 0) -> None:
        self.small = small
        self.round = Round(round_)
        self.disk = Disk(small.durable())
        self.disk.store_blob(small.initial, small.initial_payload, 256, synced=True)
        self.pool = self._pool()

    def _pool(self) -> Pool:
        signer = self.small.signers[ME]
        return Pool(self.small.federation, ME, signer, self.disk.recovered(), self.round)

    def restart(self, *, power_lost: bool = False) -> Effects:
        if power_lost:
            self.disk.lose_power()
        self.pool = self._pool()
        self.pool.resume()
        return self.settle(100.0)

    def settle(self, now: float = 0.0) -> Effects:
        self.pool.ask(now)
        done = self.pool.take()
        self.disk.apply(Persist(acks=tuple(done.acks), offer=done.offer))
        for chunk in done.store:
            self.disk.store_chunk(chunk)
        for digest in done.drop:
            self.disk.drop(digest)
        return done

    def receive(self, peer: int, message: Message, now: float = 0.0) -> Effects:
        self.pool.receive(NodeId(peer), message, now)
        return self.settle(now)

    def chunk(
        self, peer: int, digest: Digest, index: int, data: bytes, now: float = 0.0
    ) -> Effects:
        event = ReceivedChunk(NodeId(peer), digest, index, data, digest_of(data))
        self.pool.receive_chunk(event, now)
        return self.settle(now)

    def deliver(self, peer: int, manifest: Manifest, payload: bytes) -> Effects:
        """All chunks; what the last one led to."""
        self.chunk(peer, manifest.digest, 0, payload[:256])
        return self.chunk(peer, manifest.digest, 1, payload[256:])

    def checked(self, digest: Digest) -> Effects:
        self.pool.validated(digest, validate(self.small.federation, self.disk.read(digest)))
        return self.settle()

    def take_in(self, author: int, round_: int, manifest: Manifest, payload: bytes) -> Effects:
        """The whole way from an offer to the ack."""
        self.receive(author, self.small.offer(author, round_, manifest))
        self.deliver(author, manifest, payload)
        return self.checked(manifest.digest)

    def publish(self, round_: int, manifest: Manifest, payload: bytes) -> Effects:
        self.disk.store_blob(manifest, payload, 256, synced=True)
        self.pool.publish(Round(round_), manifest)
        return self.settle()


def sent(effects: Effects, kind: type[Message]) -> list[tuple[tuple[NodeId, ...] | None, Message]]:
    return [
        (item.to, item.message)
        for item in effects.send
        if isinstance(item, Envelope) and isinstance(item.message, kind)
    ]


def acks_sent(effects: Effects) -> list[Message]:
    return [message for _, message in sent(effects, StoreAck)]


def asked(effects: Effects) -> list[tuple[int, int]]:
    """(whom, which chunk)"""
    return [
        (item.to[0], item.message.index)
        for item in effects.send
        if isinstance(item, Envelope) and item.to and isinstance(item.message, ChunkRequest)
    ]


# --- One ack per author and round ------------------------------------------------------------


def test_a_blob_is_fetched_checked_and_acknowledged_with_a_durable_record() -> None:
    host = Host()
    offered = host.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    assert asked(offered) == [(AUTHOR, 0), (AUTHOR, 1)]
    whole = host.deliver(AUTHOR, BLOB, BYTES)
    assert [work.manifest for work in whole.work] == [BLOB]
    assert not whole.acks, "nothing is acknowledged before the bytes are checked"

    done = host.checked(BLOB.digest)

    (ack,) = done.acks
    assert sent(done, StoreAck) == [((AUTHOR,), ack)]
    SMALL.verifier().ack(ack)
    assert (ack.base, ack.size, ack.acker) == (BLOB.base, 400, ME)


def test_a_second_blob_of_one_author_and_round_is_evidence_and_the_first_counts() -> None:
    host = Host()
    host.take_in(AUTHOR, 1, BLOB, BYTES)
    first = SMALL.offer(1, 1, BLOB)

    again = host.receive(AUTHOR, SMALL.offer(1, 1, BLOB_2))

    (found,) = [n.evidence for n in again.notices if isinstance(n, EvidenceFound)]
    SMALL.verifier().evidence(found)
    assert sent(again, Offer) == [((AUTHOR,), first)], "the author is shown what it offered first"
    assert not asked(again)
    host.deliver(AUTHOR, BLOB_2, BYTES_2)
    host.pool.validated(BLOB_2.digest, None)
    assert not host.settle().acks


def test_a_second_offer_that_a_third_party_relays_is_evidence_but_not_answered() -> None:
    host = Host()
    host.receive(AUTHOR, SMALL.offer(1, 1, BLOB))

    again = host.receive(OTHER, SMALL.offer(1, 1, BLOB_2))

    assert any(isinstance(notice, EvidenceFound) for notice in again.notices)
    assert not sent(again, Offer)


def test_one_ack_per_author_and_round_also_across_a_restart() -> None:
    host = Host()
    host.take_in(AUTHOR, 1, BLOB, BYTES)
    host.restart()

    offered = host.receive(AUTHOR, SMALL.offer(1, 1, BLOB_2))
    host.deliver(AUTHOR, BLOB_2, BYTES_2)
    host.pool.validated(BLOB_2.digest, None)
    checked = host.settle()

    assert not asked(offered)
    assert not offered.acks
    assert not checked.acks
    assert not acks_sent(checked)


def test_other_authors_and_rounds_are_not_affected_by_an_ack() -> None:
    host = Host()
    host.take_in(AUTHOR, 1, BLOB, BYTES)

    assert len(host.take_in(OTHER, 1, BLOB_2, BYTES_2).acks) == 1
    third, third_bytes = SMALL.blob(3)
    assert len(host.take_in(AUTHOR, 2, third, third_bytes).acks) == 1


def test_a_repeated_offer_is_answered_with_the_same_ack() -> None:
    host = Host()
    (ack,) = host.take_in(AUTHOR, 1, BLOB, BYTES).acks

    again = host.receive(AUTHOR, SMALL.offer(1, 1, BLOB))

    assert acks_sent(again) == [ack]
    assert not again.acks


def test_after_a_restart_the_same_ack_is_sent_again_while_the_bytes_are_held() -> None:
    host = Host()
    (ack,) = host.take_in(AUTHOR, 1, BLOB, BYTES).acks
    host.restart()

    again = host.receive(AUTHOR, SMALL.offer(1, 1, BLOB))

    assert acks_sent(again) == [ack]
    assert not again.work


def test_an_ack_whose_bytes_a_power_cut_took_is_sent_again_only_when_they_are_back() -> None:
    host = Host()
    (ack,) = host.take_in(AUTHOR, 1, BLOB, BYTES).acks
    restarted = host.restart(power_lost=True)

    offered = host.receive(AUTHOR, SMALL.offer(1, 1, BLOB), now=100.0)
    assert not acks_sent(restarted)
    assert not acks_sent(offered)
    assert {chunk for _, chunk in asked(offered)} == {0, 1}

    back = host.deliver(AUTHOR, BLOB, BYTES)
    assert acks_sent(back) == [ack]


def test_bytes_that_made_room_while_they_were_checked_are_not_acknowledged() -> None:
    """The author's other blob was committed in the meantime, and this one was dropped."""
    host = Host()
    host.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    host.deliver(AUTHOR, BLOB, BYTES)
    host.pool.need((Round(1), AUTHOR), BLOB_2.digest, nodes(2, 3))
    assert host.settle().drop == [BLOB.digest]

    host.pool.validated(BLOB.digest, None)

    assert not host.settle().acks


# --- What is refused -------------------------------------------------------------------------


def test_a_blob_that_breaks_the_rules_is_dropped_and_not_taken_again() -> None:
    host = Host()
    payload = b"\x00\x00\xc0\x7f" + BYTES[4:]  # NaN
    chunks = (digest_of(payload[:256]), BLOB.chunks[1])
    manifest = replace(BLOB, chunks=chunks)

    done = host.take_in(AUTHOR, 1, manifest, payload)

    assert not done.acks
    assert done.drop == [manifest.digest]
    (notice,) = done.notices
    assert isinstance(notice, PeerMisbehaved)
    assert notice.peer == AUTHOR
    assert "NaN" in notice.reason
    again = host.receive(AUTHOR, SMALL.offer(1, 1, manifest))
    assert not again.send


@pytest.mark.parametrize(
    "wrong",
    [
        tampered(BLOB, codec="bf16"),
        tampered(BLOB, size=404),
        tampered(BLOB, schema=name("another schema")),
        tampered(BLOB, chunks=BLOB.chunks[:1]),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_before_anything_is_fetched(
    wrong: Manifest,
) -> None:
    done = Host().receive(AUTHOR, SMALL.offer(1, 1, wrong))

    assert not done.send
    assert [type(notice) for notice in done.notices] == [PeerMisbehaved]


@pytest.mark.parametrize(
    ("round_", "taken"), [(3, False), (4, True), (5, True), (7, True), (8, False)]
)
def test_only_offers_of_the_last_tau_rounds_and_the_next_two_are_taken(
    round_: int, taken: bool
) -> None:
    host = Host(round_=5)

    assert bool(host.receive(AUTHOR, SMALL.offer(1, round_, BLOB)).send) is taken


def test_an_observer_acknowledges_and_offers_nothing() -> None:
    host = Host()
    host.pool.muted = True

    taken = host.take_in(AUTHOR, 1, BLOB, BYTES)
    published = host.publish(1, BLOB_2, BYTES_2)

    assert not taken.acks
    assert not acks_sent(taken)
    assert published.offer is None
    assert not published.send


# --- The node's own offer --------------------------------------------------------------------


def test_an_update_is_certified_by_exactly_q_acks_the_authors_own_included() -> None:
    host = Host()
    published = host.publish(1, BLOB, BYTES)
    assert published.offer is not None
    offer = published.offer
    assert [ack.acker for ack in published.acks] == [ME]
    assert sent(published, Offer) == [(nodes(1, 2, 3), offer)]

    assert host.receive(1, SMALL.ack(1, offer)).certified == []
    (upd,) = host.receive(3, SMALL.ack(3, offer)).certified
    assert host.receive(2, SMALL.ack(2, offer)).certified == []

    SMALL.verifier().upd(upd)
    assert (upd.round, upd.digest, upd.base, upd.size) == (1, BLOB.digest, BLOB.base, 400)
    assert upd.ackers == b"\x0b"


def test_one_acker_counts_once_and_acks_of_something_else_do_not_count() -> None:
    host = Host()
    offer = host.publish(1, BLOB, BYTES).offer
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
        certified += host.receive(ack.acker, ack).certified

    assert certified == []
    assert len(host.receive(2, SMALL.ack(2, offer)).certified) == 1


def test_an_offer_is_repeated_to_those_who_have_not_acknowledged_until_it_is_certified() -> None:
    host = Host()
    offer = host.publish(1, BLOB, BYTES).offer
    assert offer is not None
    host.receive(2, SMALL.ack(2, offer), now=0.5)

    assert not sent(host.settle(0.9), Offer)
    assert host.pool.wake_at == 1.0
    assert sent(host.settle(1.0), Offer) == [(nodes(1, 3), offer)]
    host.receive(3, SMALL.ack(3, offer), now=1.5)
    assert not sent(host.settle(5.0), Offer)
    assert host.pool.wake_at is None


def test_a_restarted_author_resumes_its_offer_and_never_makes_another() -> None:
    host = Host()
    offer = host.publish(1, BLOB, BYTES).offer
    assert offer is not None

    restarted = host.restart()
    published = host.publish(1, BLOB_2, BYTES_2)

    assert sent(restarted, Offer) == [(nodes(1, 2, 3), offer)]
    assert host.pool.offer_for(Round(1)) == offer
    assert published.offer is None
    assert not published.acks
    host.receive(1, SMALL.ack(1, offer))
    (upd,) = host.receive(2, SMALL.ack(2, offer)).certified
    assert upd.digest == BLOB.digest


def test_an_author_that_lost_the_bytes_fetches_its_own_blob_back() -> None:
    host = Host()
    offer = host.publish(1, BLOB, BYTES).offer
    assert offer is not None
    host.disk.drop(BLOB.digest)

    restarted = host.restart()

    assert {chunk for _, chunk in asked(restarted)} == {0, 1}
    assert ME not in {whom for whom, _ in asked(restarted)}
    assert host.receive(1, SMALL.ack(1, offer), 100.0).certified == []
    assert host.receive(2, SMALL.ack(2, offer), 100.0).certified == [], "its own ack needs bytes"
    (upd,) = host.deliver(OTHER, BLOB, BYTES).certified
    assert upd.digest == BLOB.digest
    assert host.disk.read(BLOB.digest) == BYTES


def participant_with(durable: Durable) -> Participant:
    return Participant(SMALL.federation, ME, SMALL.signers[ME], durable)


def test_an_author_killed_after_one_peer_acked_does_not_train_again() -> None:
    disk = Disk(SMALL.durable())
    disk.store_blob(SMALL.initial, SMALL.initial_payload, 256, synced=True)
    before = participant_with(disk.recovered())
    assert before.handle(Tick(), 0.0).work == (Train(Round(1), SMALL.initial.digest),)
    disk.store_blob(BLOB, BYTES, 256, synced=True)
    trained = before.handle(Trained(Round(1), BLOB), 1.0)
    assert trained.persist is not None
    disk.apply(trained.persist)
    (offer,) = [
        e.message for e in trained.send if isinstance(e, Envelope) and isinstance(e.message, Offer)
    ]

    after = participant_with(disk.recovered()).handle(Tick(), 2.0)

    assert after.work == ()
    assert offer in [item.message for item in after.send if isinstance(item, Envelope)]


def test_a_blob_that_was_stored_but_never_offered_is_dropped_at_the_start() -> None:
    host = Host()
    host.disk.store_blob(BLOB, BYTES, 256, synced=True)

    assert host.restart().drop == [BLOB.digest]
    assert host.pool.has(SMALL.initial.digest)


# --- Whom to ask next ------------------------------------------------------------------------


def host_in_need(sources: tuple[NodeId, ...] = nodes(1, 2, 3)) -> Host:
    """Fetches a committed update of which it knows only the digest."""
    host = Host()
    assert not host.pool.need((Round(1), AUTHOR), BLOB.digest, sources)
    return host


def test_a_blob_known_by_its_digest_alone_is_fetched_by_its_manifest() -> None:
    host = host_in_need()
    ((whom, question),) = sent(host.settle(), ManifestRequest)
    assert question == ManifestRequest(BLOB.digest)
    assert whom == nodes(1)

    answered = host.receive(1, ManifestAnswer(BLOB))
    assert sorted(chunk for _, chunk in asked(answered)) == [0, 1]
    host.deliver(2, BLOB, BYTES)

    assert host.pool.need((Round(1), AUTHOR), BLOB.digest, nodes(1))
    assert host.disk.read(BLOB.digest) == BYTES


def fetching(sources: tuple[NodeId, ...] = nodes(1, 2)) -> tuple[Host, list[tuple[int, int]]]:
    host = host_in_need(sources)
    host.settle()
    return host, asked(host.receive(1, ManifestAnswer(BLOB)))


def test_several_sources_serve_one_blob_at_once() -> None:
    _, questions = fetching()

    assert sorted(questions) == [(1, 0), (2, 1)]


def test_a_withheld_chunk_is_asked_from_the_next_source() -> None:
    host, _ = fetching()
    host.chunk(2, BLOB.digest, 1, BYTES[256:])

    assert asked(host.settle(ANSWER_WAIT_S - 0.1)) == []
    assert host.pool.wake_at == ANSWER_WAIT_S
    assert asked(host.settle(ANSWER_WAIT_S)) == [(2, 0)]


def test_who_does_not_hold_a_blob_loses_its_turn_at_once() -> None:
    host, _ = fetching()

    assert asked(host.receive(1, NotHeld(BLOB.digest), now=0.1)) == [(2, 0)]


def test_a_source_that_failed_is_asked_again_later_when_there_is_no_other() -> None:
    host, _ = fetching(nodes(1))

    assert asked(host.receive(1, NotHeld(BLOB.digest), now=0.0)) == []
    assert host.pool.wake_at == ANSWER_WAIT_S
    assert asked(host.settle(ANSWER_WAIT_S)) == [(1, 0), (1, 1)]


@pytest.mark.parametrize("rubbish", [b"rubbish", bytes(256), BYTES[:255], BYTES[:257], b""])
def test_a_rubbish_chunk_is_refused_and_asked_from_another_source(rubbish: bytes) -> None:
    host, _ = fetching()

    done = host.chunk(1, BLOB.digest, 0, rubbish)

    assert not done.store
    assert [notice.peer for notice in done.notices if isinstance(notice, PeerMisbehaved)] == [1]
    assert asked(done) == [(2, 0)]
    host.deliver(2, BLOB, BYTES)
    assert host.disk.read(BLOB.digest) == BYTES


def test_chunks_that_nobody_asked_for_are_not_stored() -> None:
    host = Host()

    assert not host.chunk(1, BLOB.digest, 0, BYTES[:256]).store
    host.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    assert host.chunk(1, BLOB.digest, 0, BYTES[:256]).store
    assert not host.chunk(1, BLOB.digest, 0, BYTES[:256]).store, "once is enough"
    assert not host.chunk(1, BLOB.digest, 2, BYTES[:256]).store


def test_a_fetch_goes_on_after_a_restart_with_what_is_already_there() -> None:
    host = Host()
    (ack,) = host.take_in(AUTHOR, 1, BLOB, BYTES).acks
    del host.disk.blobs[BLOB.digest].chunks[1]
    host.restart()

    offered = host.receive(AUTHOR, SMALL.offer(1, 1, BLOB), now=100.0)

    assert {chunk for _, chunk in asked(offered)} == {1}
    assert acks_sent(host.chunk(1, BLOB.digest, 1, BYTES[256:])) == [ack]


def test_what_is_here_is_served_and_what_is_not_is_said() -> None:
    host = Host()
    initial = SMALL.initial.digest

    assert host.receive(2, ChunkRequest(initial, 1)).send == [ServeChunk(OTHER, initial, 1)]
    assert sent(host.receive(2, ManifestRequest(initial)), ManifestAnswer)
    for question in (ManifestRequest(BLOB.digest), ChunkRequest(BLOB.digest, 0)):
        assert sent(host.receive(2, question), NotHeld) == [((OTHER,), NotHeld(BLOB.digest))]


# --- What is kept ----------------------------------------------------------------------------


def test_a_committed_update_takes_the_place_of_the_offered_one() -> None:
    host = Host()
    host.take_in(AUTHOR, 1, BLOB, BYTES)

    host.pool.need((Round(1), AUTHOR), BLOB_2.digest, nodes(2, 3))
    done = host.settle()

    assert done.drop == [BLOB.digest]
    assert not host.pool.has(BLOB.digest)
    assert len(sent(done, ManifestRequest)) == 1
    assert not asked(host.receive(AUTHOR, SMALL.offer(1, 1, BLOB))), "the old one is not wanted"
    host.receive(2, ManifestAnswer(BLOB_2))
    host.deliver(2, BLOB_2, BYTES_2)
    assert host.pool.has(BLOB_2.digest)


def test_a_blob_is_kept_for_tau_rounds_and_one_of_grace() -> None:
    host = Host()
    host.take_in(AUTHOR, 1, BLOB, BYTES)
    for round_ in (1, 2, 3):
        host.pool.round_is(Round(round_))
        assert BLOB.digest not in host.settle().drop
    assert host.pool.has(BLOB.digest)
    assert host.pool.stored["acks"] == 0, "round 1 is no longer within tau: no ack is left"

    host.pool.round_is(Round(4))

    assert host.settle().drop == [BLOB.digest]
    assert BLOB.digest not in host.disk.blobs


def test_a_blob_that_two_labels_name_stays_until_the_last_one_goes() -> None:
    host = Host()
    host.take_in(AUTHOR, 1, BLOB, BYTES)
    host.take_in(OTHER, 2, BLOB, BYTES)

    host.pool.round_is(Round(4))
    assert BLOB.digest not in host.settle().drop
    host.pool.round_is(Round(5))
    assert BLOB.digest in host.settle().drop


def test_one_author_never_occupies_more_than_tau_plus_three_blobs() -> None:
    host = Host()
    most = 0
    for round_ in range(12):
        host.pool.round_is(Round(round_))
        for target in range(13 + 3):
            for seed in (0, 1):
                manifest, payload = SMALL.blob(100 * target + seed)
                host.receive(AUTHOR, SMALL.offer(1, target, manifest))
                host.deliver(AUTHOR, manifest, payload)
        mine = [label for label in host.pool.labels if label[1] == AUTHOR]
        most = max(most, len(mine))
        held = [blob for blob in host.disk.blobs.values() if blob.manifest.base != NO_DIGEST]
        assert len(held) <= SMALL.federation.tau + 3

    assert most == SMALL.federation.tau + 3


def test_a_fetch_that_retention_no_longer_wants_is_given_up() -> None:
    host = host_in_need()
    host.settle()

    host.pool.round_is(Round(4))

    assert host.pool.stored["fetches"] == 0
    assert host.pool.wake_at is None
