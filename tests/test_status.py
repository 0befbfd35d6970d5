"""The status: one typed value, the same in the node, as JSON and for its reader."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection, create_server

import msgspec
import pytest

from defl.cli.exit_codes import ExitCode
from defl.cli.status_text import status_text
from defl.dashboard.feed import Feed
from defl.node.files import PORT_FILE, STARTED_FILE, STATUS_FILE, TOKEN_FILE
from defl.node.report.changes import Counts, Review
from defl.node.report.contradiction import Contradiction
from defl.node.report.phases import Phase, PhaseTime
from defl.node.report.round_facts import Started
from defl.node.report.status import (
    BY_RULE,
    NO_UPDATE,
    Aggregation,
    CommitLatency,
    Evaluation,
    LaneTraffic,
    LateUpdate,
    LeftOutRounds,
    LinkStatus,
    MemberLateness,
    MemberShare,
    OpenRoundStatus,
    ProvenStatus,
    RoundStatus,
    decode_status,
    encode_status,
)
from defl.node.report.status_client import STATUS_BYTES_MAX, last_status, running_status
from defl.node.store.storage import LOCK
from support.founding import defl, init_nodes
from support.made_history import add_facts, round_of
from support.statuses import status

BUSY = status(
    round=3,
    model="ab" * 32,
    peers={"bob": True, "carol": False, "dave": True},
    links={
        "bob": LinkStatus("direct", 0.00042),
        "dave": LinkStatus("through the relay hub", 0.0812),
    },
    trouble={"carol": "carol at c.example:1 cannot be reached: no answer in time"},
    away_s={"carol": 130.0},
    peer_traffic={"bob": LaneTraffic(700_000, 900_000), "dave": LaneTraffic(0, 0)},
    proven=ProvenStatus(2, "cd" * 32, 3, 4),
    commit_ms=CommitLatency(p50=20.0, p99=31.0),
    waiting_for_s={"dave": 1.5},
    open_round=OpenRoundStatus(
        round=4,
        open_s=31.0,
        phases=[PhaseTime(Phase.TRAIN, 0.0, 20.0), PhaseTime(Phase.CLOSE, 20.0)],
        arrivals={"alice": 20.5, "bob": None, "dave": 22.0},
        awaited=["carol"],
        closes_s=45.0,
    ),
    evidence=[Contradiction("dave", "Vote", 212, file="evidence-dave-vote-212.json")],
    refused={"dave": 4},
    traffic={"control": LaneTraffic(10, 20), "weights": LaneTraffic(1_000_000, 2_500_000)},
    training_failures=2,
    worker_error="training for round 4 failed:\n  File client.py\nValueError: no labels",
    aggregation=Aggregation(
        3,
        "dave stands out.",
        {
            "alice": MemberShare(1.0, 0.9, None, trust=1.0),
            "carol": MemberShare(),
            "dave": MemberShare(0.0, 7.5, BY_RULE, "it goes astray", trust=0.0),
        },
    ),
    left_out={"carol": LeftOutRounds(0, 1), "dave": LeftOutRounds(3, 0)},
    late={"carol": MemberLateness(1, 3, lasted_s=2.0, waited_s=1.0, usual_s=3.0)},
    own_update_late=LateUpdate(2, 0.5),
    evaluation=Evaluation(3, {"accuracy": 0.97, "loss": None}, 0.2),
    evaluation_error="round 2: it took too long",
    history=[RoundStatus(3, ["carol"], left_out=["dave"], metrics={"accuracy": 0.97})],
)


@pytest.mark.parametrize("value", [status(), BUSY], ids=["new", "busy"])
def test_a_status_survives_json(value: object) -> None:
    assert decode_status(encode_status(value)) == value


def test_a_score_that_is_not_finite_is_null_in_json_and_the_reason_stays() -> None:
    shares = {"dave": MemberShare(0.0, float("inf"), BY_RULE), "carol": MemberShare()}
    text = encode_status(status(aggregation=Aggregation(1, "", shares)))

    assert json.loads(text)["aggregation"]["members"]["dave"]["score"] is None
    decoded = decode_status(text)
    assert decoded is not None
    assert decoded.aggregation.members["dave"].reason == BY_RULE
    assert decoded.aggregation.members["carol"].reason == NO_UPDATE
    assert decoded.aggregation.left_out == ["dave"]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"round": "three"}'])
def test_anything_but_a_status_decodes_to_none(data: bytes) -> None:
    assert decode_status(data) is None


def test_a_field_of_a_later_release_is_ignored() -> None:
    later = {**msgspec.to_builtins(BUSY), "new_in_a_later_release": 1}

    assert decode_status(json.dumps(later).encode()) == BUSY


@pytest.mark.parametrize(
    "change",
    [
        {"observing": "lost record"},
        {"disk_full": True},
        {"no_descriptors": True},
        {"safety_broken": "another block"},
    ],
)
def test_a_node_that_cannot_sign_or_is_contradicted_is_not_healthy(
    change: dict[str, object],
) -> None:
    assert status().healthy
    assert not status(**change).healthy


def test_reading_a_status_loads_neither_the_node_nor_prometheus() -> None:
    code = (
        "import sys; import defl.node.report.status_client, defl.cli.serve; "
        "print([m for m in ('defl.node.node', 'prometheus_client', 'numpy') if m in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "defl.node.node" not in loaded
    assert "prometheus_client" not in loaded


def test_the_status_text_shows_progress_peers_and_problems() -> None:
    assert status_text(BUSY).splitlines() == [
        "  federation    c9b14b02c9b14b02",
        "  epoch         0, member",
        "  round         3 of 5",
        "  waiting       for updates: 0 of at least 3 are in",
        "  model         abababababababab",
        "  proven        round 2 by 3 of 4: cdcdcdcdcdcdcdcd",
        "  consensus     view 0, height 0",
        (
            "  open round    4, opened 31 s ago; 3 of 4 updates are in, 3 are enough once 45 s "
            "have passed"
        ),
        "                phase: close, for 11.0 s",
        "                alice: in at 20.5 s",
        "                bob: in",
        "                dave: in at 22.0 s",
        "                carol: awaited",
        "  peers         2 of 3 connected",
        "                bob: direct, round trip 0.4 ms; 700 kB sent, 900 kB received",
        (
            "                carol: away for 2 min: carol at c.example:1 cannot be reached: no "
            "answer in time"
        ),
        "                dave: through the relay hub, round trip 81 ms",
        "  traffic       1 MB sent, 2.5 MB received",
        "  commits       20 ms (median), 31 ms (p99)",
        "  disk          4.1 kB, 1 blobs",
        "  memory        50 MB at most",
        "  aggregate     of round 3: dave stands out.",
        "                alice: weight 1.000, score 0.9, trust 100%",
        "                carol: left out, no update in the round",
        (
            "                dave: left out, the rule gave it no weight (it goes astray), "
            "score 7.5, trust 0%"
        ),
        "  left out      carol: 0 rounds by the rule, 1 without an update",
        "  left out      dave: 3 rounds by the rule, 0 without an update",
        (
            "  late          carol: late in 1 round; round 3 lasted 2.0 s: it needs 3.0 s, "
            "1.0 s too long; waited 1.0 s for it"
        ),
        "  evaluation    of round 3: accuracy 0.97, loss not finite",
        "  evidence      dave signed two votes in view 212; evidence/evidence-dave-vote-212.json",
        "  refused       4 messages of dave that broke the protocol",
        "  own update    0.5 s late in round 2",
        "  training      failed 2 times in a row",
        "  last error    training for round 4 failed:",
        "                  File client.py",
        "                ValueError: no labels",
        "  no evaluation round 2: it took too long",
    ]


def test_the_status_text_shows_the_epoch_and_what_each_change_lacks() -> None:
    change = Review(
        digest="5408f5f8b85a" + "0" * 52,
        author="alice",
        round=3,
        operations=["add eve at e.example:1", "remove dan"],
        approvals=["alice", "bob"],
        needs=3,
        after=Counts.of(4),
        missing=["1 more approval, of carol or dave", "eve's machine is not ready"],
    )
    complete = msgspec.structs.replace(change, missing=[])
    shown = status(round=3, epoch=2, counts=Counts.of(5), changes=[change, complete])

    lines = status_text(shown).splitlines()

    assert "  epoch         2, member, n = 5, f = 1, quorum 4" in lines
    first = lines.index(
        "  change        5408f5f8b85a0000 of alice: add eve at e.example:1; remove dan"
    )
    assert lines[first + 1 : first + 3] == [
        "                approved by alice, bob (2 of 3); then n = 4, f = 1, quorum 3",
        "                missing: 1 more approval, of carol or dave; eve's machine is not ready",
    ]
    assert lines[first + 5] == "                takes effect when round 4 closes"
    gone = status_text(status(role="former member", departed=True))
    assert "0, former member, left for good" in gone


def test_the_status_text_of_a_healthy_node_is_short() -> None:
    text = status_text(status())

    assert len(text.splitlines()) == 10
    assert "None" not in text
    assert "{" not in text


ESCAPES = "\x1b]0;title\x07\x1b[2A\rround 99\u202e"


def test_the_text_for_people_shows_control_characters_as_escapes() -> None:
    text = status_text(status(worker_error=f"failed:\n{ESCAPES}", waiting=ESCAPES))

    assert all(line.isprintable() for line in text.split("\n"))
    assert r"\x1b[2A\rround 99\u202e" in text


# --- Another program on the port of a node that was killed ----------------------------------------


@contextmanager
def answering(folder: Path, answer: bytes) -> Iterator[list[bytes]]:
    """Each connection to the port in the node's folder gets this answer; yields the requests."""
    requests: list[bytes] = []
    with create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (folder / PORT_FILE).write_text(str(port), encoding="ascii")
        (folder / TOKEN_FILE).write_text("secret", encoding="ascii")

        def serve() -> None:
            while True:
                connection, _ = server.accept()
                with connection:
                    requests.append(connection.recv(65536))
                    if b"stop" in requests[-1]:
                        return
                    try:
                        connection.sendall(answer.replace(b"PORT", b"%d" % port))
                    except ConnectionError:  # the reader has had enough
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield requests
        finally:
            with create_connection(("127.0.0.1", port)) as last:
                last.sendall(b"stop")
            thread.join()


DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        OK + b"Content-Length: 999\r\n\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        OK + b"\r\n" + DEEP,
        OK + b"\r\n" + b" " * STATUS_BYTES_MAX + encode_status(status()),
    ],
    ids=["not HTTP", "cut short", "broken chunks", "long header", "deeply nested", "too long"],
)
def test_an_answer_that_is_no_status_counts_as_none(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path, answer):
        assert running_status(tmp_path) is None


def test_the_status_client_follows_no_redirect(tmp_path: Path) -> None:
    with answering(
        tmp_path, b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:PORT/other\r\n\r\n"
    ) as requests:
        assert running_status(tmp_path) is None
        assert len(requests) == 1


def test_a_final_status_that_is_nested_too_deeply_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / STATUS_FILE).write_bytes(DEEP)
    assert last_status(tmp_path) is None


# --- A node that does not answer -----------------------------------------------------------------


def test_a_node_without_a_status_is_told_apart_by_its_past(tmp_path: Path) -> None:
    init_nodes(tmp_path)
    node = tmp_path / "alice"

    assert "alice does not run; it has never run. Start it" in defl("node", "status", node).text
    (node / STARTED_FILE).touch()
    assert "it was started, but no round is on record" in defl("node", "status", node).text
    assert defl("node", "status", node).code == ExitCode.FAILED
    (node / "state").mkdir()
    with (node / "state" / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(os.getpid(), file=lock, flush=True)
        starting = defl("node", "status", node)
    assert f"process {os.getpid()} holds" in starting.text
    assert starting.code == ExitCode.REFUSED
    assert defl("node", "status", tmp_path).code == ExitCode.REFUSED  # holds no node itself


def test_a_killed_node_has_the_dashboards_sentence_and_no_status(tmp_path: Path) -> None:
    init_nodes(tmp_path)
    node = tmp_path / "alice"
    add_facts(node, [Started(1_790_000_000.0, 0, 0, 1, ["alice"])])

    in_first_round = defl("node", "status", node).text
    add_facts(node, [*round_of(1), *round_of(2)])
    text, answer = defl("node", "status", node), defl("node", "status", node, "--json")

    assert "last seen in round 1 at " in in_first_round
    assert "alice does not run; last seen in round 2 at " in text.text
    assert answer.json.keys() == {"running", "health"}
    assert not answer.json["running"]
    assert text.text.splitlines() == [answer.json["health"]["sentence"]]
    assert answer.json["health"]["sentence"] == Feed([node], "").overview().health.sentence
    assert (text.code, answer.code) == (ExitCode.FAILED, ExitCode.FAILED)


def test_a_node_that_was_killed_after_a_clean_exit_is_seen_in_its_newest_round(
    tmp_path: Path,
) -> None:
    init_nodes(tmp_path)
    node = tmp_path / "alice"
    (node / STATUS_FILE).write_bytes(encode_status(status()))
    add_facts(node, round_of(4))

    assert "last seen in round 4 at " in defl("node", "status", node).text


def test_the_status_of_an_earlier_exit_is_not_shown_as_the_final_one(tmp_path: Path) -> None:
    init_nodes(tmp_path)
    node = tmp_path / "alice"
    (node / STATUS_FILE).write_bytes(encode_status(status()))

    first, second, *_ = defl("node", "status", node).text.splitlines()
    assert first.startswith("alice does not run; last seen in round 1 at ")
    assert first.endswith(f"Start it: `defl node start {node}`")
    assert second == "Its final status:"
    (node / TOKEN_FILE).write_text("secret", encoding="ascii")  # left behind by a killed node
    assert "its status at an earlier exit:" in defl("node", "status", node).text


def test_the_status_as_json_has_the_sentence_of_the_text(tmp_path: Path) -> None:
    init_nodes(tmp_path)
    node = tmp_path / "alice"
    (node / STATUS_FILE).write_bytes(encode_status(status(round=5, finished=True)))

    answer = defl("node", "status", node, "--json")
    health = answer.json["health"]
    assert health["level"] == "good"
    assert health["sentence"] == "Finished: all 5 rounds closed."
    assert health["sentence"] == defl("node", "status", node).text.splitlines()[0]
    assert answer.code == 1
