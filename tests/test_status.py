"""The status: one typed value, the same in the node, as JSON and for its reader."""

import json
import subprocess
import sys

import msgspec
import pytest

from defl.cli.status_text import status_text
from defl.node.report.status import (
    BY_RULE,
    NO_UPDATE,
    Aggregation,
    CommitLatency,
    Contradiction,
    Evaluation,
    LaneTraffic,
    LateUpdate,
    LeftOutRounds,
    MemberLateness,
    MemberShare,
    RoundStatus,
    decode_status,
    encode_status,
)
from support.statuses import status

BUSY = status(
    round=3,
    model="ab" * 32,
    peers={"bob": True, "carol": False, "dave": True},
    trouble={"carol": "carol at c.example:1 cannot be reached: no answer in time"},
    commit_ms=CommitLatency(p50=20.0, p99=31.0),
    waiting_for_s={"dave": 1.5},
    evidence=[Contradiction("dave", "Vote")],
    refused={"dave": 4},
    traffic={"control": LaneTraffic(10, 20), "weights": LaneTraffic(1_000_000, 2_500_000)},
    training_failures=2,
    worker_error="training for round 4 failed:\n  File client.py\nValueError: no labels",
    aggregation=Aggregation(
        3,
        "dave stands out.",
        {
            "alice": MemberShare(1.0, 0.9, None),
            "carol": MemberShare(),
            "dave": MemberShare(0.0, 7.5, BY_RULE),
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
    "change", [{"observing": "lost record"}, {"disk_full": True}, {"no_descriptors": True}]
)
def test_a_node_that_cannot_sign_is_not_healthy(change: dict[str, object]) -> None:
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
        "  round         3 of 5",
        "  waiting       for updates: 0 of at least 3 are in",
        "  model         abababababababab",
        "  consensus     view 0, height 0",
        "  peers         2 of 3 connected",
        "                carol: carol at c.example:1 cannot be reached: no answer in time",
        "  traffic       1 MB sent, 2.5 MB received",
        "  commits       20 ms (median), 31 ms (p99)",
        "  disk          4.1 kB, 1 blobs",
        "  memory        50 MB at most",
        "  aggregate     of round 3: dave stands out.",
        "                alice: weight 1.000, score 0.9",
        "                carol: left out, no update in the round",
        "                dave: left out, the rule gave it no weight, score 7.5",
        "  left out      carol: 0 rounds by the rule, 1 without an update",
        "  left out      dave: 3 rounds by the rule, 0 without an update",
        (
            "  late          carol: late in 1 round; round 3 lasted 2.0 s: it needs 3.0 s, "
            "1.0 s too long; waited 1.0 s for it"
        ),
        "  evaluation    of round 3: accuracy 0.97, loss not finite",
        "  evidence      dave signed two contradicting Vote statements",
        "  refused       4 messages of dave that broke the protocol",
        "  own update    0.5 s late in round 2",
        "  training      failed 2 times in a row",
        "  last error    training for round 4 failed:",
        "                  File client.py",
        "                ValueError: no labels",
        "  no evaluation round 2: it took too long",
    ]


def test_the_status_text_of_a_healthy_node_is_short() -> None:
    text = status_text(status())

    assert len(text.splitlines()) == 9
    assert "None" not in text
    assert "{" not in text
