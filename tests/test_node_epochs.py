"""What of a node follows its participant from epoch to epoch, and what its operator reads of it."""

import asyncio
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from defl.cards import Card
from defl.changes import Remove
from defl.committee import Committee
from defl.ids import OUTSIDER, NodeId, digest_of
from defl.ingress import Ingress
from defl.node.epoch_parts import Cards, EpochParts, ingress_of
from defl.node.report.change_log import ChangeLog
from defl.node.report.changes import reviews
from defl.node.report.history import RoundHistory
from defl.node.report.metrics import Measures
from defl.node.report.names import STRANGER, Names
from defl.node.report.outsider_text import LEAVES, outsider_waits
from defl.node.report.results import Results
from defl.node.store.blobs import Blobs
from defl.output import Observing
from defl.participant import Participant
from defl.wire import encode, says_handover
from support.builders import Small, nodes
from support.epochs import Churn
from support.logs import log_to

GUEST, FORMER = NodeId(100), NodeId(116)


class Followers:
    """Stands for the verifier and the transport, and records what they are told."""

    def __init__(self) -> None:
        self.ingress: Ingress | None = None
        self.contacts: list[tuple[dict[NodeId, str], int, NodeId]] = []

    def enter(self, _committee: Committee, ingress: Ingress) -> None:
        self.ingress = ingress

    def set_contacts(self, cards: Mapping[NodeId, Card], epoch: int, me: NodeId) -> None:
        named = {peer: card.name for peer, card in cards.items()}
        self.contacts.append((named, epoch, me))


def followed(participant: Participant) -> tuple[EpochParts, Followers]:
    followers = Followers()
    parts = EpochParts(
        participant,
        ingress_of(participant),
        followers,  # type: ignore[arg-type]
        followers,  # type: ignore[arg-type]
        Cards(()),
    )
    return parts, followers


def with_guest() -> tuple[Churn, int]:
    """A federation whose members have approved erin, who does not run yet."""
    churn = Churn(rounds=20)
    erin = churn.add_machine("erin")
    churn.switch_off(erin)
    churn.run_until_round(2)
    churn.change(churn.add(erin, "erin"))
    churn.run_until(lambda: GUEST in churn.participant(0).contacts.all)
    return churn, erin


def test_a_guest_becomes_a_contact_and_then_a_member_under_its_id() -> None:
    churn, erin = with_guest()
    parts, followers = followed(churn.participant(0))
    parts.follow()
    assert followers.contacts == []  # nothing is new since it was made

    churn.switch_on(erin)
    churn.run_until_epoch(1)
    parts.follow()

    names, epoch, me = followers.contacts[-1]
    assert (names[NodeId(4)], GUEST in names, me) == ("erin", False, NodeId(0))
    assert epoch == 0


def test_the_epoch_is_told_to_peers_only_when_its_boundary_is_on_disk() -> None:
    """A leaver goes when enough others have shown the new epoch: they must not forget it."""
    churn, erin = with_guest()
    parts, followers = followed(churn.participant(0))
    churn.switch_on(erin)
    churn.run_until_epoch(1)
    parts.follow()
    assert [epoch for _, epoch, _ in followers.contacts] == [0]

    parts.boundary_written(1)
    parts.follow()

    assert [epoch for _, epoch, _ in followers.contacts] == [0, 1]


def test_frames_are_judged_by_the_facts_of_the_participants_epoch() -> None:
    churn, erin = with_guest()
    parts, followers = followed(churn.participant(0))
    churn.switch_on(erin)
    churn.run_until_epoch(1)
    assert followers.ingress is None

    parts.follow()

    assert followers.ingress is not None
    assert followers.ingress.epoch == 1


def test_a_signature_made_on_the_way_into_an_epoch_is_not_remembered_in_the_last_one() -> None:
    """A new member's id does not exist there."""
    churn, erin = with_guest()
    churn.switch_on(erin)
    churn.run_until_epoch(0, erin)
    parts, _ = followed(churn.participant(erin))
    assert churn.participant(erin).me == OUTSIDER
    parts.remember_own(digest_of(b"as a guest"), b"")
    churn.run_until_epoch(1, erin)

    parts.remember_own(digest_of(b"as a member"), b"")
    parts.follow()
    parts.remember_own(digest_of(b"as a member"), b"")


def test_names_follow_guests_members_and_former_keys() -> None:
    churn, erin = with_guest()
    names = Names(churn.participant(0))
    assert names.of(NodeId(0)) == churn.participant(0).federation.members[0].name
    assert names.of(GUEST) == "erin (guest)"
    assert names.of(NodeId(1234)) == STRANGER

    churn.switch_on(erin)
    churn.run_until_epoch(1)
    assert names.of(NodeId(4)) == "erin"
    churn.propose(erin, Remove(NodeId(4)))
    churn.run_until_epoch(2)
    assert names.of(NodeId(4)) == "erin"
    assert names.of(FORMER) == "erin (former member)"


def waits(participant: Participant) -> str:
    state = participant.state
    return outsider_waits(
        participant, reviews(participant.federation, state.round, state.changes, state.ready)
    )


def test_a_guest_says_what_it_waits_for_and_a_leaver_too() -> None:
    churn = Churn(rounds=20)
    erin = churn.add_machine("erin")
    guest = churn.participant(erin)
    assert "for a quorum of the members to approve it" in waits(guest)
    churn.run_until_round(2)
    churn.change(churn.add(erin, "erin"))
    churn.run_until(lambda: bool(guest.state.changes))
    assert "machine is not ready" in waits(guest)
    churn.run_until(lambda: bool(guest.state.ready) or guest.epoch == 1)
    if guest.epoch == 0:
        assert waits(guest) == f"for round {guest.state.round + 1} to close; then it is a member"
    churn.run_until_epoch(1, erin)

    churn.propose(erin, Remove(guest.me))
    churn.run_until_epoch(2, erin)
    assert waits(guest) in (LEAVES, "for nothing: it has left, and enough members know it")
    churn.run_until(lambda: guest.departed)
    assert "it has left" in waits(guest)


def test_a_guest_that_was_told_another_fingerprint_shows_where_it_is() -> None:
    churn = Churn()
    erin = churn.add_machine("erin")
    guest = churn.participant(erin)
    guest.awaits_chain = b"another"

    sentence = waits(guest)
    assert "whose fingerprint you typed" in sentence
    chain = guest.federation.chain.hex()
    assert f"{chain[:4]} {chain[4:8]}" in sentence
    assert "defl node join" in sentence


def test_proposals_approvals_and_readiness_are_logged_once() -> None:
    churn = Churn(rounds=20)
    erin = churn.add_machine("erin")
    churn.run_until_round(2)
    participant = churn.participant(0)
    stream = io.StringIO()
    log = ChangeLog(participant, Names(participant), log_to(stream))
    digest = churn.propose(0, churn.add(erin, "erin"))
    log.follow()
    log.follow()
    churn.approve(digest, 1, 2)

    def is_ready() -> bool:
        log.follow()  # as after each decision
        return bool(participant.state.ready)

    churn.run_until(is_ready)
    churn.run_until_epoch(1)
    log.follow()

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    events = [line["event"] for line in lines]
    assert events.count("a change is proposed") == 1
    assert events.count("a change is approved") == 2
    assert events.count("a newcomer's machine is ready") == 1
    assert "a change is withdrawn" not in events
    assert {line["change"] for line in lines if "change" in line} == {digest.hex()[:16]}


def test_a_withdrawn_proposal_is_logged() -> None:
    churn = Churn(rounds=20)
    erin = churn.add_machine("erin")
    churn.run_until_round(2)
    participant = churn.participant(0)
    churn.propose(0, churn.add(erin, "erin"))
    stream = io.StringIO()
    log = ChangeLog(participant, Names(participant), log_to(stream))
    churn.run_until_round(participant.state.round + 1)
    churn.propose(0)
    log.follow()

    assert "a change is withdrawn" in stream.getvalue()


def test_only_handovers_are_letters() -> None:
    small = Small(real=False)
    assert says_handover(encode(small.handover()))
    assert not says_handover(encode(small.snapshot()))


def test_why_a_node_observes_is_logged_once_for_all_epochs(tmp_path: Path) -> None:
    participant = Churn().participant(0)
    lines = io.StringIO()
    results = Results(
        tmp_path,
        participant,
        Names(participant),
        cast("Blobs", None),  # no model is written here
        log_to(lines),
        Measures(),
        RoundHistory(["alice"], nodes(0)),
    )

    async def tell() -> None:
        for reason in ("lost", "lost", "an old copy"):
            await results.notice(Observing(reason))

    asyncio.run(tell())
    assert len(lines.getvalue().splitlines()) == 2
