"""Real nodes as real processes: TLS on loopback, SQLite, workers, SIGKILL."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from defl.committee import Timing
from defl.lab.experiments.processes import Nodes
from defl.node.report.round_facts import FoldedFacts, UpdateVerdict
from defl.node.report.round_log import RoundLog

LIMIT_S = 120.0
TIMING = Timing(view_base_s=0.5, gst_lt_min_s=2.0, gst_lt_max_s=30.0, grace_s=30.0)


def defl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "defl.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture
def nodes(tmp_path: Path):
    federation = Nodes(tmp_path / "federation", 4, 4, timing=TIMING, chunk_bytes=1024)
    yield federation
    federation.close()


def test_nodes_killed_mid_run_continue_and_agree(nodes: Nodes) -> None:
    """One dies in round 1, then all at once in round 2; none signs twice, and nothing is lost."""
    nodes.start()
    nodes.wait(lambda: nodes.round(0) >= 1, LIMIT_S)
    nodes.kill(1)
    nodes.start(1)
    nodes.wait(lambda: nodes.round(2) >= 2, LIMIT_S)
    nodes.kill(*nodes.members)
    nodes.start()
    nodes.finish(LIMIT_S)

    assert nodes.judge() == []
    assert_history_survived(nodes.local.nodes[3], last=nodes.rounds)
    model, certificate = (nodes.local.nodes[3] / name for name in (
        "proven.safetensors", "round-certificate.json",
    ))  # fmt: skip
    federation = nodes.local.folder / "federation.toml"
    proof = defl("verify", str(model), str(certificate), str(federation))
    assert proof.returncode == 0, proof.stdout + proof.stderr


def assert_history_survived(folder: Path, last: int) -> None:
    """Of a node that was killed once."""
    history = FoldedFacts()
    history.add(RoundLog(folder).read_new().facts)
    assert len(history.starts) == 2
    newest = history.rounds[last]
    assert newest.closed is not None
    assert newest.ready is not None
    assert newest.proven is not None
    assert newest.proven.digest == newest.ready.digest
    assert {newest.verdict(f"node-{member}") for member in range(4)} <= {
        UpdateVerdict.KEPT,
        UpdateVerdict.LATE,
        UpdateVerdict.NO_UPDATE,
    }
    timed = [facts.timed for facts in history.rounds.values() if facts.timed is not None]
    for phase in (phase for facts in timed for phase in facts.phases):
        assert phase.end_s is not None
        assert 0 <= phase.start_s < phase.end_s


# Only the first member's evaluation fails, each time.
EVALUATE = """
    def evaluate(self, weights):
        if os.environ["DEFL_NODE"] == "0":
            raise ValueError("no test data")
        return {"accuracy": float(weights["w"].size)}
"""


def test_every_model_is_evaluated_and_a_failing_evaluation_affects_nothing_else(
    nodes: Nodes,
) -> None:
    code = nodes.local.folder / "project" / "client.py"
    before, _, _ = code.read_text(encoding="utf-8").partition("\n    def evaluate")
    code.write_text(before + EVALUATE, encoding="utf-8")
    nodes.start()
    nodes.finish(LIMIT_S)

    assert nodes.judge() == []
    status = nodes.status(1)
    assert status.evaluation.round == nodes.rounds
    assert status.evaluation.metrics == {"accuracy": 1000.0}
    assert status.aggregation.round == nodes.rounds
    shares = status.aggregation.members.values()
    assert sum(share.weight for share in shares) == pytest.approx(1.0)
    assert {"aggregated", "trained"} <= {line["event"] for line in nodes.log(1)}
    evaluated = [line["round"] for line in nodes.log(1) if line["event"] == "evaluated"]
    assert evaluated == sorted(set(evaluated))
    assert len(evaluated) > 1
    assert "ValueError: no test data" in nodes.status(0).worker_error
    assert nodes.status(0).evaluation is None


def test_a_running_node_shows_its_status_and_stops_on_request(nodes: Nodes) -> None:
    nodes.start(0, 1)  # half of them: no round can close, so they run until they are stopped
    nodes.wait(
        lambda: (
            (status := nodes.status(0)) is not None
            and "node-1" in status.links
            and status.links["node-1"].round_trip_s is not None
        ),
        LIMIT_S,
    )
    folder = str(nodes.local.nodes[0])

    shown = defl("node", "status", folder, "--json")
    assert shown.returncode == 0
    status = json.loads(shown.stdout)
    assert status["running"]
    assert status["round"] == 0
    assert list(status["links"]) == ["node-1"]
    assert status["links"]["node-1"]["route"] == "direct"
    sentence = status["health"]["sentence"]
    assert sentence == "No round has closed yet; 2 of 4 connected, 3 needed."
    text = defl("node", "status", folder).stdout
    assert text.splitlines()[0] == sentence
    assert "node-1: direct, round trip " in text
    nodes.wait(lambda: nodes.status(0).evaluation is not None, LIMIT_S)
    port = (nodes.local.nodes[0] / "telemetry.port").read_text(encoding="ascii")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
        metrics = answer.read().decode()
    assert "defl_evaluated_round 0" in metrics
    assert 'defl_evaluation{metric="loss"} 0' in metrics
    assert defl("node", "stop", folder).returncode == 0
    nodes.wait(lambda: not nodes.running(0), LIMIT_S)
    after = defl("node", "status", folder, "--json")
    assert after.returncode == 1
    assert not json.loads(after.stdout)["running"]


def test_a_second_process_on_one_folder_is_refused(nodes: Nodes) -> None:
    nodes.start(0)
    nodes.wait(lambda: (status := nodes.status(0)) is not None and status.view > 0, LIMIT_S)
    second = defl("node", "start", str(nodes.local.nodes[0]))

    assert second.returncode == 2
    assert "another process" in second.stderr


def test_a_lost_state_is_not_mistaken_for_a_first_start(nodes: Nodes) -> None:
    nodes.start(0)
    nodes.wait(lambda: (status := nodes.status(0)) is not None and status.view > 0, LIMIT_S)
    nodes.kill(0)
    (nodes.local.nodes[0] / "state").rename(nodes.local.nodes[0] / "lost")
    again = defl("node", "start", str(nodes.local.nodes[0]))

    assert again.returncode == 2
    assert "--observer" in again.stderr


def test_nodes_whose_federation_files_differ_in_one_byte_refuse_each_other(
    nodes: Nodes,
) -> None:
    other = nodes.local.folder / "other"
    other.mkdir()
    text = (nodes.local.folder / "federation.toml").read_text(encoding="utf-8")
    (other / "federation.toml").write_text(text + "#\n", encoding="utf-8")
    initial = next(nodes.local.folder.glob("*.safetensors"))
    (other / initial.name).write_bytes(initial.read_bytes())
    settings = nodes.local.nodes[1] / "node.toml"
    settings.write_text(
        settings.read_text(encoding="utf-8").replace("../federation", "../other/federation"),
        encoding="utf-8",
    )
    nodes.start(0, 1)

    def refusals() -> str:
        status = nodes.status(0)
        return "" if status is None else status.trouble.get("node-1", "")

    nodes.wait(lambda: "federation.toml" in refusals(), 30.0)
    assert not any(nodes.status(0).peers.values())
    nodes.wait(lambda: "federation.toml" in str(nodes.log(0)), 30.0)
