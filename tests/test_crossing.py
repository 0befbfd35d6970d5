"""One node across a boundary: peers of other epochs, guests, former members, and the switch."""

from functools import cache

import pytest
from msgspec.structs import replace

from defl.changes import Add, Approve, Change, Ready, Remove, Rounds
from defl.contacts import STRANGERS_FROM, PeerRole
from defl.crypto import Signer
from defl.errors import BadCertificate, BadSignature, PeerFault
from defl.fields import bitmap_of
from defl.finish import ALONE_S
from defl.ids import OUTSIDER, Digest, NodeId, Round, View, digest_of
from defl.ledger import decode_state
from defl.messages import (
    QC,
    Agg,
    Blocks,
    Certificates,
    Chunk,
    ChunkRequest,
    Gossip,
    Handover,
    Manifest,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    Status,
    StoreAck,
    Transaction,
    vote_statement,
)
from defl.output import (
    Aggregated,
    Connected,
    Departed,
    Disconnected,
    Envelope,
    Event,
    OtherEpoch,
    Output,
    PeerMisbehaved,
    Persist,
    Received,
    ReceivedChunk,
    RoundClosed,
    RoundProven,
    ServeChunk,
    ServeHandover,
    Tick,
    Train,
    Validated,
    WorkFailed,
)
from defl.output_builder import OutputBuilder
from defl.participant import Participant
from defl.participant_parts import first_record_of
from defl.pool.pool import PoolEffects
from defl.sim.conditions import Conditions
from defl.sim.signer import NoopSigner
from defl.wire import encode
from support.builders import Small, let_sign, name, nodes, tampered
from support.epochs import Churn, signed_card
from support.switches import SWITCH

SMALL = Small(5, real=False, rounds=10)
EVE = NoopSigner(name("eve's key"))
MALLORY = NoopSigner(name("mallory's key"))


def in_epoch_1(*machines: str) -> Churn:
    """Five members; the last one has left after round 2 or so."""
    churn = Churn(5, rounds=12)
    for text in machines:
        churn.add_machine(text)
    churn.run_until_round(2)
    churn.propose(4, Remove(NodeId(4)))
    churn.run_until_epoch(1, 0, 1, 2, 3)
    return churn


def sent(output: Output, kind: type[Message]) -> list[Envelope]:
    return [
        item
        for item in output.send
        if isinstance(item, Envelope) and isinstance(item.message, kind)
    ]


def handovers(output: Output) -> list[ServeHandover]:
    return [item for item in output.send if isinstance(item, ServeHandover)]


def node(me: int) -> Participant:
    participant = Participant(SMALL.federation, NodeId(me), SMALL.signers[me], SMALL.durable())
    participant.handle(Tick(), 0.0)
    return participant


def test_a_question_about_a_blob_is_sent_even_if_the_epoch_ends_in_the_same_step() -> None:
    """Who asked waits for the answer before it asks somebody else."""
    question = Envelope(nodes(1), ChunkRequest(name("blob"), 0))
    builder = OutputBuilder()
    builder.add_sent([Envelope(None, Status(View(1), View(0))), question])
    builder.enter(SWITCH, None, 1)

    assert builder.build(None).send == (question,)


def test_nothing_of_the_last_epoch_is_recorded_with_the_boundary() -> None:
    """An ack of the last epoch, found on the disk in the next, would bind its author's first offer
    there: this node would never acknowledge it."""
    builder = OutputBuilder()
    manifest, _ = SMALL.blob(1)
    offer = SMALL.offer(1, 2, manifest)
    builder.add_pool(PoolEffects(acks=[SMALL.ack(0, offer)], offer=SMALL.offer(0, 2, manifest)))
    builder.enter(SWITCH, None, 1)

    persist = builder.build(None).persist
    assert persist is not None
    assert persist.switch == SWITCH
    assert (persist.acks, persist.offer) == ((), None)


# --- Peers of other epochs -------------------------------------------------------------------


@pytest.mark.parametrize("event", [Connected(NodeId(1), 0), OtherEpoch(NodeId(1), 0)], ids=repr)
def test_a_peer_of_an_older_epoch_is_handed_its_end(event: Event) -> None:
    churn = in_epoch_1()
    now = churn.cluster.now + 100.0
    participant = churn.participant(0)

    assert handovers(participant.handle(event, now)) == [ServeHandover(NodeId(1), 0)]
    assert handovers(participant.handle(event, now + 0.5)) == [], "once per view_base_s"
    assert handovers(participant.handle(event, now + 1.0)) == [ServeHandover(NodeId(1), 0)]


@pytest.mark.parametrize("event", [Connected(NodeId(1), 5), OtherEpoch(NodeId(1), 5)], ids=repr)
def test_to_a_peer_of_a_newer_epoch_a_node_shows_where_it_is(event: Event) -> None:
    participant = node(0)
    output = participant.handle(event, 10.0)

    (status,) = sent(output, Status)
    assert (status.to, status.epoch) == (nodes(1), 0)
    assert not handovers(output)
    assert not any(isinstance(notice, PeerMisbehaved) for notice in output.notices)


def test_a_peer_that_names_ever_newer_epochs_is_answered_once() -> None:
    participant = node(0)
    outputs = [participant.handle(OtherEpoch(NodeId(1), 5 + k), 10.0) for k in range(9)]

    assert [len(sent(output, Status)) for output in outputs] == [1] + [0] * 8


def test_epochs_far_apart_are_handed_over_one_at_a_time() -> None:
    """A peer five epochs behind gets the end of its own epoch; the next one as soon as it is
    there, however short a time after the first."""
    churn = in_epoch_1()
    machine = churn.add_machine("eve")
    churn.change(churn.add(machine, "eve"), by=0, approvers=(1, 2, 3))
    churn.run_until_epoch(2, 0, 1, 2, 3)
    now, participant = churn.cluster.now + 100.0, churn.participant(0)

    first = participant.handle(OtherEpoch(NodeId(1), 0), now)
    second = participant.handle(OtherEpoch(NodeId(1), 1), now)
    assert handovers(first) == [ServeHandover(NodeId(1), 0)]
    assert handovers(second) == [ServeHandover(NodeId(1), 1)]


@pytest.mark.parametrize("epochs", [1, 5])
def test_a_connection_between_two_epochs_brings_the_older_one_on(epochs: int) -> None:
    """A switched, B did not, and their connection drops and comes back. Neither accuses the
    other."""
    behind = 3
    churn = Churn(4, rounds=30)
    churn.run_until_round(1)
    churn.cluster.traffic.censor = lambda s, t, _: behind in (s, t)
    others = [0, 1, 2]
    for epoch in range(1, epochs + 1):
        approvers = tuple(others[1:])
        if epoch % 2:
            others.append(churn.add_machine(f"guest of {epoch}"))
            operation: Add | Remove = churn.add(others[-1], f"guest-{epoch}")
        else:
            operation = Remove(churn.participant(others.pop()).me)
        churn.change(operation, by=0, approvers=approvers)
        churn.run_until_epoch(epoch, *others)
    assert churn.participant(behind).epoch == 0
    reached: list[NodeId] = []

    def handed(_source: NodeId, target: NodeId, message: Message) -> bool:
        if isinstance(message, Handover):
            reached.append(target)
        return False

    churn.cluster.traffic.censor = handed
    churn.cluster.traffic.reconnect_all()
    churn.run_until(lambda: churn.epochs_begun(behind) == list(range(1, epochs + 1)))

    assert NodeId(behind) in reached
    assert not churn.accusations
    assert not churn.observers


# --- Handovers -------------------------------------------------------------------------------


def test_a_handover_brings_a_node_into_the_next_epoch_with_one_atomic_write() -> None:
    participant = node(0)
    handover = SMALL.handover()
    output = participant.handle(Received(NodeId(1), handover), 1.0)

    assert participant.epoch == 1
    persist = output.persist
    assert isinstance(persist, Persist)
    assert persist.switch is not None
    assert persist.switch.handover == handover
    assert persist.record == first_record_of(participant.federation, persist.switch.closed)
    assert (persist.blocks, persist.snapshot, persist.acks, persist.offer) == ((), None, (), None)
    assert all(item.epoch == 1 for item in output.send if isinstance(item, Envelope))


def test_the_rounds_that_a_handover_closes_are_reported_and_its_bearer_is_answered() -> None:
    """The bearer may be a stranger, which learns from the Status that it can go."""
    participant = node(0)
    stranger = NodeId(STRANGERS_FROM)
    output = participant.handle(Received(stranger, SMALL.handover()), 1.0)

    closed = [notice for notice in output.notices if isinstance(notice, RoundClosed)]
    assert [(notice.round, notice.updates) for notice in closed] == [(1, nodes(0, 1, 2, 3, 4))]
    assert [status.epoch for status in sent(output, Status) if status.to == (stranger,)] == [1]


def test_a_round_is_proven_in_the_epoch_that_closed_it() -> None:
    """Only the members of that epoch signed the updates that prove it."""
    participant = node(0)
    output = participant.handle(Received(NodeId(1), SMALL.handover()), 1.0)
    proven = [notice for notice in output.notices if isinstance(notice, RoundProven)]

    assert participant.epoch == 1
    assert [(notice.round, notice.epoch) for notice in proven] == [(0, 0)]


def at_the_end() -> Participant:
    """Member 4, whose log has ended its epoch, before it has the proof. It signed no QC."""
    participant = node(4)
    ending = SMALL.ending_chain()
    for block in ending:
        participant.handle(Received(block.header.author, SMALL.proposal(block)), 0.0)
    third = ending[2]
    participant.handle(Received(NodeId(1), Certificates(SMALL.qc(third.view, third.id), None)), 1.0)
    assert (participant.epoch, participant.state.ended) == (0, True)
    return participant


def test_a_node_whose_log_proves_the_end_shows_its_new_epoch_in_the_same_step() -> None:
    participant = at_the_end()
    last = SMALL.ending_chain()[-1]
    proof = Certificates(SMALL.qc(last.view, last.id), None)
    output = participant.handle(Received(NodeId(1), proof), 2.0)

    assert participant.epoch == 1
    assert [status.epoch for status in sent(output, Status)] == [1]


@pytest.mark.parametrize("was_behind", [False, True])
def test_only_a_node_that_was_behind_waits_for_another_handover(was_behind: bool) -> None:
    participant = node(4) if was_behind else at_the_end()
    participant.handle(WorkFailed(Train(Round(1), SMALL.initial.digest), "no memory"), 1.0)
    participant.handle(Received(NodeId(1), SMALL.handover()), 2.0)
    assert participant.epoch == 1
    output = participant.handle(Aggregated(Round(1), SMALL.blob(1)[0]), 2.1)

    assert [type(work) for work in output.work] == ([] if was_behind else [Train])


def test_a_handover_whose_state_is_not_the_certified_one_is_refused() -> None:
    participant = node(0)
    genuine = SMALL.handover()
    state = replace(decode_state(genuine.snapshot.state), closed=())  # it says that it has ended
    forged = Handover(replace(genuine.snapshot, state=SMALL.ledger.encode(state)))
    output = participant.handle(Received(NodeId(1), forged), 1.0)

    assert participant.epoch == 0
    assert [notice.peer for notice in output.notices if isinstance(notice, PeerMisbehaved)] == [1]


def test_a_snapshot_before_the_end_is_no_handover() -> None:
    participant = node(0)
    output = participant.handle(Received(NodeId(1), Handover(SMALL.snapshot())), 1.0)

    assert participant.epoch == 0
    assert any(isinstance(notice, PeerMisbehaved) for notice in output.notices)


def test_a_handover_of_another_epoch_is_not_worth_verifying() -> None:
    participant = node(0)
    handover = SMALL.handover()
    assert participant.wanted(NodeId(1), handover) == handover
    participant.handle(Received(NodeId(1), handover), 1.0)

    assert participant.wanted(NodeId(1), handover) is None
    before = participant.federation
    participant.handle(Received(NodeId(1), handover), 1.0)
    assert participant.federation == before


def test_a_handover_of_an_epoch_that_this_node_has_not_reached_changes_nothing() -> None:
    ahead = node(1)
    ahead.handle(Received(NodeId(2), SMALL.handover()), 1.0)
    later = SMALL.in_epoch_of(ahead).handover()
    assert later.epoch == 1
    participant = node(0)
    output = participant.handle(Received(NodeId(1), later), 1.0)

    assert participant.epoch == 0
    assert (output.persist, output.notices) == (None, ())


def test_an_observer_stays_one_in_the_next_epoch() -> None:
    """Its key may have signed what its record does not show; only another key ends that."""
    participant = node(0)
    participant.replica.observe("its state is an old copy")
    output = participant.handle(Received(NodeId(1), SMALL.handover()), 1.0)

    assert participant.epoch == 1
    assert participant.replica.observing is not None
    assert output.persist is not None
    assert output.persist.record is not None
    assert output.persist.record.observing is not None
    assert participant.replica.muted


def test_a_node_whose_recall_is_unanswered_signs_nothing_in_the_next_epoch_either() -> None:
    """It may have signed in this epoch before it lost what it knew of it."""
    participant = node(0)
    assert participant.answers_missing
    participant.handle(Received(NodeId(1), SMALL.handover()), 1.0)

    assert participant.answers_missing
    assert participant.replica.muted


def test_offers_of_the_open_round_do_not_cross_the_boundary() -> None:
    """Their acks are of the old epoch. They are made anew; what closed stays."""
    participant = node(0)
    let_sign(participant)
    for round_ in (1, 2):
        manifest, _ = SMALL.blob(round_)
        participant.handle(Received(NodeId(1), SMALL.offer(1, round_, manifest)), 1.0)
    assert participant.pool.stored["offers"] == 2
    assert participant.pool.stored["fetches"] == 2
    output = participant.handle(Received(NodeId(1), SMALL.handover()), 2.0)

    assert participant.federation.first_round == 2
    assert participant.pool.stored["offers"] == 0
    assert SMALL.blob(2)[0].digest in output.drop
    assert participant.pool.stored["acks"] == 0


def junk() -> Manifest:
    """An update of another codec: refused when it is offered."""
    return tampered(SMALL.blob(7)[0], codec="bf16")


@pytest.mark.parametrize("before", [junk(), SMALL.blob(8)[0]], ids=["refused", "another one"])
def test_what_an_author_offered_before_the_boundary_does_not_bind_its_next_epoch(
    before: Manifest,
) -> None:
    """The author's key may have been replaced: the new machine starts without the old one's
    refusals."""
    participant = node(0)
    let_sign(participant)
    participant.handle(Received(NodeId(1), SMALL.offer(1, 2, before)), 1.0)
    participant.handle(Received(NodeId(1), SMALL.handover()), 2.0)
    small = SMALL.in_epoch_of(participant)
    manifest, payload = small.blob(9, name("model of round 1"))
    participant.handle(Received(NodeId(1), small.offer(1, 2, manifest), 1), 3.0)
    for index, data in enumerate((payload[:256], payload[256:])):
        event = ReceivedChunk(NodeId(1), manifest.digest, index, data, digest_of(data))
        participant.handle(event, 3.0)

    (ack,) = sent(participant.handle(Validated(manifest.digest, None), 3.0), StoreAck)
    small.verifier().verify(ack.message)


def test_an_offer_for_a_round_that_the_last_epoch_closed_is_ignored() -> None:
    participant = node(0)
    let_sign(participant)
    participant.handle(Received(NodeId(1), SMALL.handover()), 2.0)
    small = SMALL.in_epoch_of(participant)
    offer = small.offer(1, 1, small.blob(9)[0])

    assert participant.wanted(NodeId(1), offer) is None
    participant.handle(Received(NodeId(1), offer, 1), 3.0)
    assert participant.pool.stored["offers"] == 0


def test_what_another_epochs_facts_admitted_is_dropped() -> None:
    participant = node(0)
    block = SMALL.block()
    before = participant.replica.head
    for epoch in (1, 2):
        participant.handle(Received(NodeId(1), Blocks((block,)), epoch), 1.0)
        participant.handle(Received(NodeId(1), SMALL.proposal(block), epoch), 1.0)
    assert participant.replica.stored["blocks"] == node(0).replica.stored["blocks"]
    assert participant.replica.head == before

    output = participant.handle(Received(NodeId(1), ManifestRequest(name("blob")), 7), 2.0)
    assert sent(output, NotHeld), "named by digest, it means the same in every epoch"


# --- Guests ----------------------------------------------------------------------------------


@cache
def guest_bench() -> tuple[Churn, int, int]:
    """A federation with an approved joiner that is not ready yet, and its number as a guest.
    Somebody else proposes mallory."""
    churn = Churn(4, rounds=30)
    joiner = churn.add_machine("joiner")
    churn.run_until_round(2)
    churn.switch_off(joiner)
    facts = churn.cluster.federation
    churn.propose(1, Add(signed_card(MALLORY, "mallory", facts.origin)))
    churn.change(churn.add(joiner, "eve"))
    churn.run_until(lambda: bool(churn.participant(0).contacts.guests))
    (guest,) = churn.participant(0).contacts.guests
    return churn, joiner, guest


def ready_of(churn: Churn, signer: Signer) -> Ready:
    member = churn.participant(0)
    assert member.state.last is not None
    unsigned = Ready(Round(member.state.round + 1), signer.public_key, member.state.last.base, b"")
    facts = member.federation
    return replace(unsigned, signature=signer.sign(unsigned.statement(facts.chain, facts.epoch)))


def test_a_guest_speaks_for_its_own_key_alone() -> None:
    churn, joiner, guest = guest_bench()
    member = churn.participant(0)
    ready = ready_of(churn, churn.cluster.signers[joiner])
    others: tuple[Transaction, ...] = (
        ready_of(churn, MALLORY),
        Approve(ready.round, NodeId(3), member.state.changes[0].digest, True, bytes(64)),
        Change(ready.round, NodeId(3), (Rounds(Round(50)),), bytes(64)),
    )

    assert member.wanted(NodeId(1), Gossip((ready, others[0]))) == Gossip((ready, others[0]))
    assert member.wanted(NodeId(guest), Gossip((ready, *others))) == Gossip((ready,))
    assert member.wanted(NodeId(guest), Gossip(others)) is None


def test_nobody_verifies_approvals_and_readies_that_cannot_count() -> None:
    churn, _, _ = guest_bench()
    member = churn.participant(0)
    round_ = Round(member.state.round + 1)
    unknown = tuple(
        Approve(round_, NodeId(1), Digest(name(f"{i}")), True, bytes(64)) for i in range(40)
    )
    readies = tuple(ready_of(churn, NoopSigner(name(f"key {i}"))) for i in range(40))

    assert member.wanted(NodeId(1), Gossip(unknown)) is None
    assert member.wanted(NodeId(1), Gossip(readies)) is None


def test_a_guest_without_a_model_is_not_ready() -> None:
    """Nobody sends blobs to an approved joiner, which would count as one of the f faulty members.
    The model that the joiner has from the start is older than the kept rounds."""
    churn = Churn(4, rounds=30, tau=2)
    joiner = churn.add_machine("joiner")
    churn.run_until_round(3)
    churn.cluster.traffic.censor = lambda _, target, message: (
        target == joiner and isinstance(message, Chunk)
    )
    churn.change(churn.add(joiner, "eve"))
    churn.run_until(lambda: bool(churn.participant(joiner).state.wanted_keys))
    churn.run_until_round(churn.newest.state.round + 3, 0, 1, 2, 3)
    assert (churn.newest.epoch, churn.newest.state.ready) == (0, ())

    churn.cluster.traffic.censor = None
    churn.run_until_epoch(1)


def test_a_guest_repeats_its_ready_once_per_period_until_it_is_recorded() -> None:
    churn = Churn(4, rounds=30)
    joiner = churn.add_machine("joiner")
    churn.run_until_round(2)
    lost: list[Message] = []

    def lose(source: NodeId, _target: NodeId, message: Message) -> bool:
        if source == joiner and isinstance(message, Gossip):
            lost.append(message)
            return True
        return False

    churn.cluster.traffic.censor = lose
    churn.change(churn.add(joiner, "eve"))
    churn.run_until(lambda: bool(lost))
    guest, now = churn.participant(joiner), churn.cluster.now
    period_s = guest.federation.timing.view_base_s
    outputs = [guest.handle(Tick(), now + after_s) for after_s in (0.0, 0.0, period_s, period_s)]

    assert sum(len(sent(output, Gossip)) for output in outputs[:2]) == 0
    assert [len(sent(output, Gossip)) for output in outputs[2:]] == [1, 0]


def test_a_guest_that_observes_is_not_ready() -> None:
    """It would be a member that never signs."""
    churn = Churn(4, rounds=30)
    joiner = churn.add_machine("joiner")
    churn.run_until_round(2)
    churn.participant(joiner).replica.observe("its state is an old copy")
    churn.change(churn.add(joiner, "eve"))
    churn.run_until(lambda: bool(churn.participant(joiner).state.wanted_keys))
    churn.run_until_round(churn.newest.state.round + 3, 0, 1, 2, 3)

    assert (churn.newest.epoch, churn.newest.state.ready) == (0, ())


# --- Former members --------------------------------------------------------------------------


def test_a_former_member_gets_blobs_of_its_own_rounds_alone() -> None:
    churn = in_epoch_1()
    member = churn.participant(0)
    former = member.contacts.peer_of(churn.node(4).key)
    assert former is not None
    assert member.contacts.role_of(former) is PeerRole.FORMER
    last = member.federation.first_round - 1
    (closed,) = [one for one in member.state.closed if one.round == last]
    old = closed.updates[0].digest
    now = churn.cluster.now
    output = member.handle(Received(former, ChunkRequest(old, 0), 1), now)
    assert [item for item in output.send if isinstance(item, ServeChunk)]

    churn.run_until_round(last + 1)
    newest = member.state.last
    assert newest is not None
    for question in (
        ManifestRequest(newest.updates[0].digest),
        ChunkRequest(newest.updates[0].digest, 0),
    ):
        output = member.handle(Received(former, question, 1), churn.cluster.now)
        assert [one.to for one in sent(output, NotHeld)] == [(former,)]
        assert not [item for item in output.send if isinstance(item, ServeChunk)]
        assert not sent(output, ManifestAnswer)


def test_a_leaver_may_go_once_a_member_has_offered_its_update_and_is_told_once() -> None:
    """Only the leaver may have synced its last update before that offer, so the Status that
    releases the leaver waits. Later the Status is repeated only when the leaver asks."""
    churn = Churn(5, rounds=12, conditions=Conditions(work_s=3.0))
    churn.run_until_round(1)
    shown: list[tuple[NodeId, bool]] = []

    def spy(source: NodeId, target: NodeId, message: Message) -> bool:
        if target == 4 and isinstance(message, Status) and churn.participant(source).epoch == 1:
            pool, facts = churn.participant(source).pool, churn.participant(source).federation
            shown.append((source, pool.offer_for(Round(facts.first_round)) is not None))
        return source == 4 and isinstance(message, Status)  # nobody receives its question

    churn.cluster.traffic.censor = spy
    churn.propose(4, Remove(NodeId(4)))
    churn.run_until_round(churn.newest.state.round + 3, 0, 1, 2, 3)

    assert churn.newest.epoch == 1
    assert sorted(shown) == [(source, True) for source in nodes(0, 1, 2, 3)]


def test_a_leaver_that_connects_again_is_shown_again_that_it_may_go() -> None:
    """The first Status may have been lost with the link."""
    churn = in_epoch_1()
    member = churn.participant(0)
    former = member.contacts.peer_of(churn.node(4).key)
    assert former is not None
    churn.run_until_round(member.federation.first_round, 0, 1, 2, 3)
    output = member.handle(Connected(former, 1), churn.cluster.now)

    assert [one.to for one in sent(output, Status)] == [(former,)]


def test_former_members_of_earlier_epochs_stay_contacts() -> None:
    """One that was away for an epoch still needs somebody that takes its call."""
    churn = Churn(6, rounds=12)
    churn.run_until_round(2)
    churn.propose(5, Remove(NodeId(5)))
    churn.run_until_epoch(1, 0, 1, 2, 3)
    churn.propose(4, Remove(NodeId(4)))
    churn.run_until_epoch(2, 0, 1, 2, 3)

    former = [known.member.key for known in churn.participant(0).contacts.former]
    assert former == [churn.node(machine).key for machine in (5, 4)]


def test_a_former_member_that_asks_often_is_answered_once_per_period() -> None:
    churn = in_epoch_1()
    member = churn.participant(0)
    former = member.contacts.peer_of(churn.node(4).key)
    assert former is not None
    churn.run_until_round(member.federation.first_round, 0, 1, 2, 3)
    period_s = member.federation.timing.view_base_s
    question = Received(former, churn.participant(4).replica.status, 1)
    start = churn.cluster.now + period_s
    answers = []
    for after_s in (0.0, 0.0, period_s / 2, period_s):
        output = member.handle(question, start + after_s)
        answers.append(len([one for one in sent(output, Status) if one.to == (former,)]))

    assert answers == [1, 0, 0, 1]


def test_a_former_member_says_once_that_it_has_departed() -> None:
    churn = in_epoch_1()
    churn.run_until(lambda: churn.participant(4).departed)
    (said,) = churn.notices_of(Departed)
    assert said == (4, Departed(1))

    question = Received(NodeId(0), churn.participant(0).replica.status, 1)
    assert churn.participant(4).handle(question, churn.cluster.now).notices == ()


def test_a_former_member_that_has_departed_does_not_say_that_it_is_isolated() -> None:
    churn = in_epoch_1()
    churn.run_until(lambda: churn.participant(4).departed)
    former, now = churn.participant(4), churn.cluster.now
    for member in nodes(0, 1, 2, 3):
        former.handle(Disconnected(member), now)

    assert former.handle(Tick(), now + 2 * ALONE_S).notices == ()
    assert not former.isolated


def test_an_answer_that_was_on_its_way_when_its_sender_left_is_no_fault() -> None:
    """It was asked as a member. Blobs are named by digest, so it does not matter who sends them."""
    churn = in_epoch_1()
    former = churn.participant(0).contacts.peer_of(churn.node(4).key)
    assert former is not None
    manifest, payload = SMALL.blob(1)
    ingress = churn.node(0).ingress
    answers = (
        ManifestAnswer(manifest),
        Chunk(manifest.digest, 0, memoryview(payload[:256])),
        NotHeld(manifest.digest),
    )
    for answer in answers:
        try:
            ingress.admit(former, encode(answer))
        except PeerFault as fault:
            pytest.fail(f"a {type(answer).__name__}: {fault}")


def test_what_a_former_member_signs_is_worth_nothing_whoever_relays_it() -> None:
    """Its id is in the list for ever, and its key is known."""
    churn = in_epoch_1()
    facts, signer = churn.participant(0).federation, churn.cluster.signers[4]
    unsigned = Agg(Round(facts.first_round), NodeId(4), b"")
    agg = replace(unsigned, signature=signer.sign(unsigned.statement(facts.chain, 1)))
    voters = nodes(0, 1, 4)
    message = vote_statement(facts.chain, 1, View(1), name("block"))
    signatures = tuple(churn.cluster.signers[voter].sign(message) for voter in voters)
    qc = QC(View(1), name("block"), bitmap_of(voters, facts.committee.slots), signatures)

    with pytest.raises(BadSignature, match="member 4, which does not exist"):
        churn.node(0).ingress.admit(NodeId(1), encode(Gossip((agg,)), epoch=1))
    with pytest.raises(BadCertificate, match="members that do not exist"):
        churn.node(0).ingress.admit(NodeId(1), encode(Certificates(qc, None), epoch=1))


def test_a_leaver_shows_its_status_to_the_members_and_signs_nothing() -> None:
    churn = Churn(5)
    churn.run_until_round(2)
    kinds: set[str] = set()

    def spy(source: NodeId, _target: NodeId, message: Message) -> bool:
        if source == 4 and churn.participant(4).me == OUTSIDER:
            kinds.add(type(message).__name__)
        return False

    churn.cluster.traffic.censor = spy
    churn.propose(4, Remove(NodeId(4)))
    churn.run_until(lambda: churn.participant(4).departed)

    assert "Status" in kinds
    assert kinds <= {
        "Status", "BlockRequest", "Handover", "ManifestRequest", "ManifestAnswer", "ChunkRequest",
        "Chunk", "NotHeld",
    }  # fmt: skip
