"""What the page gets, from nodes' folders: before they ran, after they ended, in between."""

import shutil
from pathlib import Path

import pytest

from defl.dashboard.feed import Feed
from defl.dashboard.worker_log import TAIL_BYTES
from defl.node.files import HISTORY_FILE, WORKER_LOG
from defl.node.report.health import Level
from defl.node.report.round_facts import UpdateVerdict
from support.made_history import add_facts, found_nodes, round_of, started, write_status


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    return found_nodes(tmp_path)


def test_a_node_that_never_ran_is_shown_with_how_to_start_it(nodes: list[Path]) -> None:
    overview = Feed(nodes[:1], "").overview()

    assert overview.title == "alice"
    assert overview.subtitle == "one node of 4"
    assert overview.health.level is Level.IDLE
    assert f"defl node start {nodes[0]}" in overview.health.sentence
    assert [member.name for member in overview.members] == ["alice", "bob", "carol", "dan"]
    assert overview.rounds_total == 5
    assert overview.open_round is None


def test_a_node_without_a_federation_is_shown_too(nodes: list[Path]) -> None:
    (nodes[0] / "federation.toml").unlink()
    feed = Feed(nodes[:1], "")

    assert feed.overview().members == []
    assert feed.rounds("").rounds == []
    facts = feed.facts(None)
    assert facts is not None
    assert facts.facts == []


def test_the_rounds_of_an_ended_node_are_all_there(nodes: list[Path]) -> None:
    alice = nodes[0]
    add_facts(alice, [started(), *round_of(1), *round_of(2, left_out=["dan"], missing=["bob"])])
    write_status(alice, round=2, rounds=5)
    feed = Feed([alice], "")
    overview, rounds = feed.overview(), feed.rounds("")

    assert [row.cells for row in rounds.rounds] == ["kkkk", "knkx"]
    assert rounds.metrics == ["accuracy"]
    by_name = {member.name: member for member in overview.members}
    assert by_name["dan"].summary == "1 of 2 kept; 1 left out"
    assert by_name["bob"].summary == "1 of 2 kept; 1 none"
    assert by_name["bob"].last_round == 1
    assert by_name["alice"].summary == "2 of 2 kept; never out"
    assert overview.happened[0].what == "round 2 closed"
    assert overview.happened[0].more == "with 3 of 4 updates, without bob; left out: dan"


def test_a_round_tells_who_came_when_and_why_somebody_was_left_out(nodes: list[Path]) -> None:
    add_facts(nodes[0], [started(), *round_of(1), *round_of(2, left_out=["dan"], missing=["bob"])])
    write_status(nodes[0], round=2)
    feed = Feed(nodes[:1], "")
    feed.overview()
    view = feed.round(2, None)

    assert view is not None
    assert view.sentence == ("3 of 4 updates came; the rule kept 2. Left out: dan. No update: bob.")
    assert view.proven == "Proven by 4 of 4"
    assert view.facts[0] == ("accuracy of the model", "92.0 % (round 1: 91.0 %)")
    shares = {share.member: share for share in view.members}
    assert shares["dan"].verdict is UpdateVerdict.LEFT_OUT
    assert shares["dan"].words == "Left out: it varies too much"
    assert shares["dan"].times_worst_kept == pytest.approx(90)
    assert shares["dan"].waited_s == pytest.approx(1.0)
    assert shares["bob"].came == "no update"
    assert shares["bob"].weight is None


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (3, "alice has no record of round 3: it was away, or joined later."),
        (9, "Round 9 has not closed yet."),
    ],
)
def test_rounds_without_a_record_say_so(nodes: list[Path], number: int, sentence: str) -> None:
    add_facts(nodes[0], [started(), *round_of(1)])
    write_status(nodes[0], round=4)
    feed = Feed(nodes[:1], "")
    feed.overview()
    view = feed.round(number, "alice")

    assert view is not None
    assert view.sentence == sentence
    assert view.members == []
    assert feed.round(1, "mallory") is None


def test_several_nodes_are_one_federation(nodes: list[Path], tmp_path: Path) -> None:
    for node in nodes[:2]:
        add_facts(node, [started(), *round_of(1)])
        write_status(node, round=1, model=f"{1:064x}")
    add_facts(nodes[1], round_of(2))
    feed = Feed(nodes, "demo")
    overview = feed.overview()

    assert overview.title == "demo"
    assert overview.subtitle == "4 nodes on this machine"
    assert [node.name for node in overview.nodes] == ["alice", "bob", "carol", "dan"]
    assert [node.same_model for node in overview.nodes] == [True, True, None, None]
    assert [row.number for row in feed.rounds("").rounds] == [1, 2]
    view = feed.round(2, None)
    assert view is not None
    assert view.seen_from == "bob"


def test_a_finished_federation_says_whom_the_rule_left_out(nodes: list[Path]) -> None:
    for node in nodes:
        rounds = [fact for number in range(1, 6) for fact in round_of(number, left_out=["dan"])]
        add_facts(node, [started(), *rounds])
        write_status(node, round=5, finished=True)
    health = Feed(nodes, "demo").overview().health

    assert health.badge == "Finished"
    (note,) = health.notes
    assert note.text.startswith(
        "dan was left out by the rule in 5 of the last 5 rounds, last in round 5: "
    )


def test_another_digest_is_noticed(nodes: list[Path]) -> None:
    add_facts(nodes[0], [started(), *round_of(1)])
    other = [fact for fact in round_of(2) if hasattr(fact, "digest")]
    add_facts(nodes[1], [started(), *round_of(1)])
    for node in nodes[:2]:
        write_status(node, round=1, model="00")
    first = Feed(nodes[:2], "two").overview()
    assert [node.same_model for node in first.nodes] == [True, True]

    from msgspec.structs import replace  # noqa: PLC0415

    add_facts(nodes[1], [replace(fact, round=1) for fact in other])
    assert [node.same_model for node in Feed(nodes[:2], "two").overview().nodes] == [False, False]


def test_a_page_follows_a_growing_history(nodes: list[Path]) -> None:
    add_facts(nodes[0], [started(), *round_of(1)])
    feed = Feed(nodes[:1], "")
    version = feed.rounds("").version
    add_facts(nodes[0], round_of(2))

    assert feed.overview().version != version
    news = feed.rounds(version)
    assert not news.whole
    assert [row.number for row in news.rounds] == [2]


def test_a_folder_that_is_deleted_meanwhile_leaves_what_was_seen(nodes: list[Path]) -> None:
    add_facts(nodes[0], [started(), *round_of(1)])
    write_status(nodes[0], round=1)
    feed = Feed(nodes[:1], "")
    feed.overview()
    shutil.rmtree(nodes[0])

    assert [row.number for row in feed.rounds("").rounds] == [1]
    assert feed.overview().members[1].summary == "1 of 1 kept; never out"


def test_a_new_history_in_place_of_the_old_one_starts_over(nodes: list[Path]) -> None:
    add_facts(nodes[0], [started(), *round_of(1), *round_of(2)])
    feed = Feed(nodes[:1], "")
    assert len(feed.rounds("").rounds) == 2
    (nodes[0] / HISTORY_FILE).unlink()
    add_facts(nodes[0], [started(), *round_of(1, left_out=["dan"])])

    assert [row.cells for row in feed.rounds("").rounds] == ["kkkx"]


def test_the_workers_log_is_shown_as_text_and_only_its_tail(nodes: list[Path]) -> None:
    state = nodes[0] / "state"
    state.mkdir()
    feed = Feed(nodes[:1], "")
    (state / WORKER_LOG).write_bytes(b"epoch 1\x1b[2J \xff <b>bold</b>\n")
    shown = feed.facts("alice")
    assert shown is not None
    assert shown.worker_log == "epoch 1\\x1b[2J � <b>bold</b>\n"
    assert not shown.worker_log_is_cut
    (state / WORKER_LOG).write_bytes(b"line\n" * TAIL_BYTES)
    shown = feed.facts("alice")
    assert shown is not None
    assert shown.worker_log_is_cut
    assert len(shown.worker_log) <= TAIL_BYTES
    assert shown.worker_log.startswith("line\n")
    assert feed.facts("mallory") is None
