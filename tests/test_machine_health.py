"""The sentence about all nodes of one machine, as `defl run` and the demo start them."""

import pytest

from defl.node.report.changes import Counts
from defl.node.report.contradiction import Contradiction
from defl.node.report.health import Level
from defl.node.report.health_notes import MemberRecord
from defl.node.report.machine_health import LocalNode, health_of_all
from defl.node.report.phases import Phase, PhaseTime
from defl.node.report.status import NodeStatus, OpenRoundStatus
from support.statuses import status

NAMES = [f"node-{number}" for number in range(7)]
MODELS = {38: "aa", 39: "bb"}


def running(name: str, *away: str, awaited: int = 2, **changes: object) -> NodeStatus:
    peers = {other: other not in away for other in NAMES if other != name}
    opened = OpenRoundStatus(
        round=40,
        open_s=1.0,
        phases=[PhaseTime(Phase.CLOSE, 0.5)],
        arrivals=dict.fromkeys(NAMES[: 7 - awaited], 0.5),
        awaited=NAMES[7 - awaited :],
        closes_s=None,
    )
    facts = {"name": name, "round": 39, "rounds": 40, "counts": Counts.of(7), "peers": peers}
    return status(**{**facts, "open_round": opened, **changes})


def machine(*stopped: str, **changes: object) -> list[LocalNode]:
    return [
        LocalNode(
            name,
            f"demo/{name}",
            None if name in stopped else running(name, *stopped, **changes),
            MODELS,
        )
        for name in NAMES
    ]


def test_all_run_and_have_the_same_model() -> None:
    health = health_of_all(machine())

    assert health.sentence == (
        "Round 40 of 40: waiting for 2 of 7 updates; 7 of 7 run and are connected; the model of "
        "round 39 is the same at all 7."
    )
    assert (health.level, health.badge, health.notes) == (Level.GOOD, "All 7 run", [])


def test_a_killed_node_is_named_with_the_command_that_starts_it() -> None:
    health = health_of_all(machine("node-1"))

    assert "6 of 7 run; node-1 does not; the model of round 39" in health.sentence
    assert (health.level, health.badge) == (Level.ATTENTION, "6 of 7 run")
    assert health.notes[0].text == ("node-1 does not run. Start it: `defl node start demo/node-1`")


def test_too_few_nodes_run() -> None:
    health = health_of_all(machine("node-1", "node-2", "node-3"))

    assert health.sentence.startswith("Round 40 of 40 cannot close: 4 of 7 run, 5 needed; ")
    assert health.level is Level.DANGER


def test_two_nodes_that_do_not_reach_each_other() -> None:
    nodes = machine()
    nodes[0] = LocalNode("node-0", "demo/node-0", running("node-0", "node-3"), MODELS)
    health = health_of_all(nodes)

    assert "7 of 7 run; node-0 lacks connections" in health.sentence
    assert health.level is Level.ATTENTION


def test_nodes_that_hold_different_models_of_one_round() -> None:
    nodes = machine()
    nodes[3] = LocalNode("node-3", "demo/node-3", running("node-3"), {38: "aa", 39: "ee"})
    health = health_of_all(nodes)

    assert health.sentence.endswith("; the models of round 39 differ.")
    assert (health.level, health.badge) == (Level.DANGER, "Models differ")


def test_a_model_that_few_nodes_have_yet_is_not_compared() -> None:
    nodes = machine()
    nodes[0] = LocalNode("node-0", "demo/node-0", running("node-0"), {**MODELS, 40: "cc"})

    assert "the model of round 39 is the same at all 7" in health_of_all(nodes).sentence


def test_the_node_that_knows_most_speaks_for_all() -> None:
    nodes = machine(awaited=5)
    nodes[4] = LocalNode("node-4", "demo/node-4", running("node-4", awaited=1), MODELS)

    assert "waiting for 1 of 7 updates" in health_of_all(nodes).sentence


@pytest.mark.parametrize(
    ("phase", "changes", "doing"),
    [
        (Phase.TRAIN, {}, "training"),
        (Phase.CERTIFY, {}, "sending updates"),
        (
            Phase.CLOSE,
            {"answers_missing": 2, "waiting": "for what they have seen this node sign"},
            "waiting for reports of what members have signed before",
        ),
    ],
)
def test_the_sentence_of_all_is_about_no_single_node(
    phase: Phase, changes: dict[str, object], doing: str
) -> None:
    opened = OpenRoundStatus(40, 1.0, [PhaseTime(phase, 0.5)], {}, NAMES, None)

    sentence = health_of_all(machine(**{"open_round": opened, **changes})).sentence
    assert sentence.startswith(f"Round 40 of 40: {doing}; 7 of 7 run and are connected; ")


def test_the_trouble_of_one_node_is_that_of_the_machine() -> None:
    nodes = machine()
    nodes[2] = LocalNode("node-2", "demo/node-2", running("node-2", disk_full=True), MODELS)
    health = health_of_all(nodes)

    assert (health.level, health.badge) == (Level.DANGER, "Disk full")
    assert health.notes[0].text.startswith("node-2: Disk full: node-2 signs nothing")


def test_members_that_are_left_out_and_evidence_are_noted_once() -> None:
    accused = machine(evidence=[Contradiction("node-6", "Vote", 3)])
    health = health_of_all(accused, [MemberRecord("node-6", 39, 39)])

    assert [note.text[:36] for note in health.notes] == [
        "node-6 was left out by the rule in 3",
        "A signed contradiction is held again",
    ]
    assert health.level is Level.ATTENTION


def test_a_federation_that_has_finished() -> None:
    models = {40: "dd"}
    done = [LocalNode(name, name, None, models, finished=True) for name in NAMES]
    health = health_of_all(done)

    assert health.sentence == (
        "Finished: all 40 rounds closed; the model of round 40 is the same at all 7."
    )
    assert health.level is Level.GOOD
    assert health.notes == []


def test_a_finished_federation_still_says_whom_the_rule_left_out() -> None:
    done = [LocalNode(name, name, None, {40: "dd"}, finished=True) for name in NAMES]
    health = health_of_all(done, [MemberRecord("node-5", 2, 40), MemberRecord("node-6", 39, 40)])

    (note,) = health.notes
    assert note.text.startswith("node-6 was left out by the rule in 39 of the last 40 rounds: ")
    assert health.level is Level.GOOD


def test_no_node_runs() -> None:
    health = health_of_all(machine(*NAMES))

    assert health.sentence.startswith("None of the 7 nodes runs; last seen with the model of")
    assert health.level is Level.IDLE
