"""The sentence about a node's health: the same at `defl node status` and on the dashboard."""

import pytest
from msgspec.structs import replace

from defl.contacts import PeerRole
from defl.node.net.sessions import key_in_use
from defl.node.report.changes import Counts
from defl.node.report.contradiction import Contradiction
from defl.node.report.health import (
    Level,
    health_of,
    health_when_stopped,
    members_health,
)
from defl.node.report.health_notes import LEFT_OUT_ROUNDS, MemberRecord
from defl.node.report.health_words import CLAUSE_CHARACTERS
from defl.node.report.open_round_text import opened_sentence
from defl.node.report.phases import Phase, PhaseTime
from defl.node.report.status import (
    LateUpdate,
    NodeStatus,
    OpenRoundStatus,
    ProvenStatus,
    RoundStatus,
)
from support.statuses import status

OTHERS = ("bob", "carol", "dave", "erin", "frank", "grace")
MINUTE = 60.0
NOON = 1_790_000_000.0


def seven(*away: str, **changes: object) -> NodeStatus:
    """alice among seven, in round 41 of 200."""
    peers = {name: name not in away for name in OTHERS}
    trouble = {name: f"nobody listens at {name}.example.org:7400; is it running?" for name in away}
    facts = {"round": 40, "rounds": 200, "counts": Counts.of(7), "peers": peers}
    return status(**{**facts, "trouble": trouble, **changes})


def doing(phase: Phase, *awaited: str) -> OpenRoundStatus:
    """The open round while this node is in that phase."""
    names = ("alice", *OTHERS)
    arrivals = {name: 20.0 for name in names if name not in awaited}
    return OpenRoundStatus(
        round=41,
        open_s=31.0,
        phases=[PhaseTime(phase, 2.0)],
        arrivals=arrivals,
        awaited=list(awaited),
        closes_s=45.0,
    )


def test_a_round_that_stays_open_past_its_wait_says_what_is_missing() -> None:
    opened = doing(Phase.CLOSE, "bob")

    overdue = opened_sentence(seven(open_round=replace(opened, open_s=50.0)))
    assert overdue == (
        "opened 50 s ago; 6 of 7 updates are in, which is enough; closes when 5 members agree"
    )


def test_a_node_that_trains() -> None:
    health = health_of(seven(open_round=doing(Phase.TRAIN, "alice", "bob")))

    assert health.sentence == "Round 41 of 200: training; 7 of 7 connected."
    assert (health.level, health.badge, health.notes) == (Level.GOOD, "Running", [])


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (Phase.PREPARE, "preparing the model of round 40"),
        (Phase.CERTIFY, "sending its update"),
        (Phase.CLOSE, "waiting for 2 of 7 updates"),
    ],
)
def test_what_a_node_does_while_its_update_is_not_in(phase: Phase, words: str) -> None:
    health = health_of(seven(open_round=doing(phase, "alice", "bob")))

    assert health.sentence == f"Round 41 of 200: {words}; 7 of 7 connected."


def test_a_node_that_waits_for_a_member_that_is_away() -> None:
    health = health_of(
        seven("bob", open_round=doing(Phase.CLOSE, "bob"), waiting_for_s={"bob": 14.2})
    )

    assert health.sentence == (
        "Round 41 of 200: waiting for 1 of 7 updates; 6 of 7 connected; bob is away: nobody "
        "listens at bob.example.org:7400."
    )
    assert (health.level, health.badge) == (Level.ATTENTION, "Running, 1 away")
    assert [(note.text, note.mark) for note in health.notes] == [
        (
            (
                "The round closes without bob in at most 14 s. Nothing has to be done while no "
                "more than 2 of 7 are away."
            ),
            "n",
        )
    ]


def test_when_all_updates_are_in_the_round_is_closing() -> None:
    health = health_of(seven(open_round=doing(Phase.CLOSE)))

    assert health.sentence == "Round 41 of 200: all updates are in, closing; 7 of 7 connected."


def test_a_round_that_cannot_close() -> None:
    health = health_of(seven("bob", "carol", "dave"))

    assert health.sentence == "Round 41 of 200 cannot close: 4 of 7 connected, 5 needed."
    assert health.level is Level.DANGER
    assert health.notes[0].text == "bob: nobody listens at bob.example.org:7400."


def test_with_exactly_a_quorum_the_round_can_close() -> None:
    health = health_of(seven("bob", "carol", open_round=doing(Phase.CLOSE, "bob", "carol")))

    assert health.sentence == (
        "Round 41 of 200: waiting for 2 of 7 updates; 5 of 7 connected; bob and carol are away."
    )


def test_before_the_first_round_members_are_still_coming() -> None:
    health = health_of(seven("bob", "carol", "dave", "erin", round=0))

    assert health.sentence == "No round has closed yet; 3 of 7 connected, 5 needed."
    assert health.level is Level.ATTENTION


def test_a_finished_federation() -> None:
    done = seven(round=200, finished=True, proven=ProvenStatus(200, "ab" * 32, 7, 7))
    health = health_of(done)

    assert health.sentence == (
        "Finished: all 200 rounds closed; the model of round 200 is proven by 7 of 7."
    )
    assert health.level is Level.GOOD
    assert health_when_stopped("alice", "alice", done).sentence == health.sentence


def test_a_proof_of_an_earlier_round_is_not_shown_as_the_last_one() -> None:
    done = seven(round=200, finished=True, proven=ProvenStatus(199, "ab" * 32, 7, 7))

    assert health_of(done).sentence == "Finished: all 200 rounds closed."


def test_all_rounds_are_closed_and_the_last_model_is_not_proven_yet() -> None:
    assert health_of(seven(round=200)).sentence == (
        "All 200 rounds closed: waiting for the members to prove the last model; 7 of 7 connected."
    )


def test_a_node_that_does_not_run() -> None:
    seen = health_when_stopped("alice", "alice", seven(), seen_at=NOON, now=NOON + MINUTE)
    never = health_when_stopped("alice", "alice")

    assert seen.sentence.startswith("alice does not run; last seen in round 41 at ")
    assert seen.sentence.endswith(". Start it: `defl node start alice`")
    assert "-" not in seen.sentence
    assert never.sentence == (
        "alice does not run; it has never run. Start it: `defl node start alice`"
    )
    assert (seen.level, seen.badge) == (Level.IDLE, "Not running")


def test_a_node_that_stopped_because_its_key_is_in_use_is_not_told_to_start() -> None:
    """Two processes with one key sign twice."""
    health = health_when_stopped("alice", "a", seven(elsewhere=key_in_use(["bob", "carol"])))

    assert health.sentence == (
        "alice does not run: this node's key is in use elsewhere: bob, carol are connected with "
        "another process that has it. Stop the other one and start this one again, or delete this "
        "folder if it is a copy."
    )
    assert "Start it" not in health.sentence
    assert health.level is Level.DANGER


def test_a_node_that_was_last_seen_days_ago_is_shown_with_the_date() -> None:
    days_ago = health_when_stopped("alice", "alice", seven(), seen_at=NOON, now=NOON + 2e5)

    assert " on 2026-09-" in days_ago.sentence


def test_a_killed_node_is_known_by_its_record_of_the_rounds() -> None:
    killed = health_when_stopped("alice", "alice", last_round=33)

    assert "last seen in round 33. Start it" in killed.sentence


@pytest.mark.parametrize(
    ("change", "sentence", "level"),
    [
        (
            {"safety_broken": "two blocks"},
            (
                "Safety broken: what alice committed is contradicted elsewhere: more than 2 of 7 "
                "lied. Stop, keep every folder, talk to all members."
            ),
            Level.DANGER,
        ),
        (
            {"disk_full": True},
            "Disk full: alice signs nothing until there is room, then goes on by itself.",
            Level.DANGER,
        ),
        (
            {"no_descriptors": True},
            (
                "No more files can be opened: alice signs nothing until they can; start it with a "
                "higher ulimit -n."
            ),
            Level.DANGER,
        ),
        (
            {"observing": "its state is lost, so nothing is known; make a new key"},
            (
                "Observing: alice follows and signs nothing until the next epoch: its state is "
                "lost, so nothing is known."
            ),
            Level.ATTENTION,
        ),
        (
            {"training_failures": 3, "worker_error": "Traceback:\n  x\nValueError: no labels"},
            (
                "Round 41 of 200: training failed 3 times in a row: ValueError: no labels; 7 of 7 "
                "connected."
            ),
            Level.DANGER,
        ),
        (
            {"answers_missing": 2, "waiting": "for 2 more members to report; nothing before"},
            "Round 41 of 200: waiting for 2 more members to report; 7 of 7 connected.",
            Level.GOOD,
        ),
    ],
)
def test_what_keeps_a_node_from_its_work(
    change: dict[str, object], sentence: str, level: Level
) -> None:
    health = health_of(seven(open_round=doing(Phase.TRAIN, "alice"), **change))

    assert (health.sentence, health.level) == (sentence, level)


def test_a_broken_safety_hides_nothing_less_important_first() -> None:
    worst = seven("bob", "carol", "dave", safety_broken="x", disk_full=True, observing="lost")

    assert health_of(worst).badge == "Safety broken"


def test_a_guest_says_what_it_waits_for_and_counts_members_without_itself() -> None:
    guest = seven(role=PeerRole.GUEST, member=None, waiting="for a quorum; they refuse it before")

    assert health_of(guest).sentence == ("alice is no member in this epoch; it waits for a quorum.")
    assert members_health(guest).sentence == "6 of 7 connected."


def test_a_member_that_has_left() -> None:
    gone = seven(role=PeerRole.FORMER, member=None, departed=True, finished=True)

    assert health_of(gone).sentence == "alice has left the federation, and enough members know it."
    assert health_when_stopped("alice", "a", gone).sentence == (
        "alice has left the federation and does not run."
    )


def test_many_absent_members_make_no_long_sentence() -> None:
    away = [f"site-{number}" for number in range(20)]
    peers = {f"site-{number}": number >= 20 for number in range(99)}
    many = status(round=1, counts=Counts.of(100), peers=peers, trouble=dict.fromkeys(away, "off"))
    health = health_of(many)

    assert "site-0, site-1, site-2 and 17 more are away" in health.sentence
    assert len(health.notes) == 4


def test_the_members_page_counts_the_absent_and_the_accused() -> None:
    accused = seven("bob", evidence=[Contradiction("grace", "Vote", 212)])
    health = members_health(accused)

    assert health.badge == "1 away, 1 with evidence"
    assert health.sentence == (
        "6 of 7 connected; bob is away: nobody listens at bob.example.org:7400."
    )
    assert [note.text for note in health.notes] == [
        (
            "A signed contradiction is held against grace: two votes in view 212. Its key runs "
            "twice, or it lies: talk to them."
        )
    ]
    assert members_health(seven()).badge == "All connected"


def test_evidence_deserves_attention_on_the_overview_too() -> None:
    assert health_of(seven(evidence=[Contradiction("grace", "Upd", 7)])).level is Level.ATTENTION


def left_out_in(rounds: int, of: int) -> list[RoundStatus]:
    return [
        RoundStatus(number, [], left_out=["grace"] if number <= rounds else [])
        for number in range(1, of + 1)
    ]


def test_a_member_that_the_rule_leaves_out_in_nearly_every_round_is_named() -> None:
    from_status = health_of(seven(history=left_out_in(8, of=8)))
    from_records = health_of(seven(), [MemberRecord("grace", 40, 40, 41)])
    seldom = health_of(seven(history=left_out_in(4, of=8)))
    too_few = health_of(seven(history=left_out_in(4, of=LEFT_OUT_ROUNDS - 1)))

    (note,) = from_records.notes
    assert note.text == (
        "grace was left out by the rule in 40 of the last 40 rounds, last in round 41: its data "
        "differ from the rest, or its training is faulty."
    )
    assert note.mark == "x"
    assert "8 of the last 8 rounds, last in round 8:" in from_status.notes[0].text
    assert from_status.level is Level.GOOD
    assert seldom.notes == too_few.notes == []


def test_the_operator_reads_of_own_problems() -> None:
    notes = health_of(
        seven(
            training_failures=1,
            worker_error="ValueError: x",
            own_update_late=LateUpdate(40, 2.34),
            evaluation_error="no data",
            crowded=True,
            turned_away=7,
        )
    ).notes

    assert [note.text for note in notes] == [
        "Training failed: ValueError: x; it is tried again.",
        "This node's own update was 2.3 s late in round 40.",
        "The newest model is not evaluated: no data.",
        (
            "Too many connect to this node without a member's proof; 7 connections were turned "
            "away since its start. Members still get in: see `crowded` in docs/OPERATING.md."
        ),
    ]


def test_hostile_names_and_troubles_stay_one_short_printable_line() -> None:
    evil = "\u202emoc\x1b[2J\n" + "x" * 5000
    hostile = status(
        round=1,
        name=evil,
        counts=Counts.of(4),
        peers={evil: False, "b": True, "c": True},
        trouble={evil: evil},
        evidence=[Contradiction(evil, evil, 1)] * 3,
        observing=None,
        worker_error=evil,
        training_failures=1,
    )
    for health in (
        health_of(hostile),
        members_health(hostile),
        health_when_stopped(evil, evil, hostile),
        health_of(hostile, [MemberRecord(evil, 9, 9)]),
    ):
        for text in (health.sentence, *(note.text for note in health.notes)):
            assert text.isprintable()
            assert len(text) < 4 * CLAUSE_CHARACTERS
