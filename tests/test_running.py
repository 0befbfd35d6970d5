"""A federation on this machine by `defl.run` and `defl run`: results, attacks, Ctrl-C, resuming."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import defl
from defl.errors import UserError
from defl.node.report.model_file import read_model
from defl.results import OmissionReason, Result, RoundRecord
from defl.running import MemberState, RunProgress, run
from defl.running.folders import held, left_overs
from defl.running.records import read_records, write_records
from support.founding import defl as command

LIMIT_S = 120.0
# Every node takes the same step, so the model of round r is r everywhere unless poisoned.
CLIENT = """
import time
import numpy as np

class client:
    def initial_weights(self):
        return {"w": np.zeros(50, dtype=np.float32)}

    def train(self, weights, round_):
        time.sleep(0.05)
        return {"w": weights["w"] + np.float32(1)}, {"loss": 1.0 / round_}

    def evaluate(self, weights):
        return {"accuracy": float(weights["w"].mean()) / 100}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, with the temporary folder beside it."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "client.py").write_text(CLIENT, encoding="utf-8")
    (folder / "defl.toml").write_text("rounds = 4\n", encoding="utf-8")
    return folder


def processes_of(folder: Path) -> list[str]:
    """Processes whose command line names a path in this folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and int(path.parent.name) != os.getpid():
            lines.append(line)
    return lines


@pytest.mark.slow
def test_a_run_ends_with_one_model_and_reports_attackers_and_absent_members(project: Path) -> None:
    # Long enough in round 2 for the kill to come before the update.
    slower = CLIENT.replace("time.sleep(0.05)", "time.sleep(1.5 if round_ == 2 else 0.05)")
    (project / "client.py").write_text(slower, encoding="utf-8")
    moments: list[RunProgress] = []
    records: list[RoundRecord] = []

    result = run(
        project,
        gst_lt_min_s=0.5,
        gst_lt_max_s=4.0,
        attacks={3: "sign_flip_10"},
        kills={"node-1": 2},
        progress=records.append,
        watch=moments.append,
    )

    assert result.complete
    assert result.agreed
    assert result.byzantine == {"node-3": "sign_flip_10"}
    attendance = {one.member: one for one in result.attendance}
    assert attendance["node-0"].taken_part == attendance["node-2"].taken_part == 4
    assert attendance["node-3"].left_out == 4
    assert attendance["node-1"].late + attendance["node-1"].missing >= 1
    weights, _ = read_model(result.folder_of("node-0") / "model.safetensors")
    assert (weights["w"] == 4).all()

    assert [record.number for record in records] == [1, 2, 3, 4]
    assert records[0].training["node-0"] == {"loss": 1.0}
    assert result.initial_metrics["node-0"] == {"accuracy": 0.0}
    assert result.rounds[3].metrics["node-0"] == {"accuracy": pytest.approx(0.04)}
    states: dict[str, set[MemberState]] = {name: set() for name in result.members}
    for moment in moments:
        for member in moment.members:
            states[member.name].add(member.state)
    assert MemberState.KILLED in states["node-1"]
    assert MemberState.ATTACKING in states["node-3"]
    lines = [line for moment in moments for line in moment.lines]
    assert "node-1 was killed (SIGKILL) in round 2" in lines
    assert any("node-1 was started again" in line for line in lines)

    # Without `out`, files that only a running node needs are deleted; the model stays usable.
    assert sorted(path.name for path in result.folder.glob("node-*/*.key")) == []
    assert list(result.folder.glob("node-*/state")) == []
    assert command("export", result.folder_of("node-2"), project / "m.npz").code == 0
    assert command("export", result.folder_of("node-0"), project / "p.npz", "--check").code == 0
    assert processes_of(result.folder) == []


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def output_until(process: "subprocess.Popen[str]", text: str) -> str:
    assert process.stdout is not None
    shown = ""
    while text not in shown:
        line = process.stdout.readline()
        assert line, shown
        shown += line
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_interrupted_before_round_1_leaves_nothing_and_offers_no_model(
    project: Path, number: signal.Signals
) -> None:
    process = start("-m", "defl.cli.main", "run", str(project))
    shown = output_until(process, "loading the training code")
    process.send_signal(number)

    shown += process.communicate(timeout=LIMIT_S)[0]

    assert process.returncode == 130, shown
    assert "interrupted before round 1 closed: there is no model" in shown
    assert "export" not in shown
    assert "model:" not in shown
    assert processes_of(project.parent / "tmp") == []
    assert list((project.parent / "tmp").iterdir()) == []


@pytest.mark.slow
def test_a_run_interrupted_during_the_initial_weights_leaves_nothing(project: Path) -> None:
    slow = 'import sys, time\nopen("loading", "w").close()\ntime.sleep(60)\n'
    (project / "client.py").write_text(slow, encoding="utf-8")
    process = start("-m", "defl.cli.main", "run", str(project))
    while not (project / "loading").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)

    shown = process.communicate(timeout=LIMIT_S)[0]

    assert process.returncode == 130, shown
    assert list((project.parent / "tmp").iterdir()) == []


# Prints what the caller of the API catches.
SCRIPT = """
import sys
import defl

try:
    defl.run(sys.argv[1], rounds=6, out=sys.argv[2], progress=True)
except KeyboardInterrupt as interrupt:
    print("caught", type(interrupt).__name__, interrupt.result.interrupted)
    print(interrupt.result)
"""


@pytest.mark.slow
def test_ctrl_c_stops_every_node_and_the_same_command_resumes_the_run(
    project: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start("-c", SCRIPT, str(project), str(out))
    shown = output_until(process, "round 2 of 6 closed")
    process.send_signal(signal.SIGINT)
    shown += process.communicate(timeout=LIMIT_S)[0]
    assert process.returncode == 0, shown
    assert "caught RunInterrupted True" in shown
    assert "same model" not in shown
    assert "different models" not in shown
    assert processes_of(out) == []

    other = command("run", project, "--rounds", "7", "--out", out)
    assert other.code == 2
    assert "holds a run with rounds = 6, not 7" in other.text
    with held(out):
        assert (
            "another run is using it" in command("run", project, "--rounds", "6", "--out", out).text
        )
    moments: list[RunProgress] = []
    result = run(project, rounds=6, out=out, progress=False, watch=moments.append)

    assert moments[0].lines[0].startswith(f"resuming the run in {out}: ")
    assert result.complete
    assert result.agreed
    assert [record.training["node-0"]["loss"] for record in result.rounds] == [
        pytest.approx(1 / number) for number in range(1, 7)
    ]
    weights, _ = read_model(out / "node-0" / "model.safetensors")
    assert (weights["w"] == 6).all()
    assert (out / "node-0" / "node.key").exists()  # the folder is the user's own
    assert (
        "holds a run that is complete"
        in command("run", project, "--rounds", "6", "--out", out).text
    )


@pytest.mark.slow
def test_a_run_whose_training_failed_resumes_once_the_code_is_fixed(
    project: Path, tmp_path: Path
) -> None:
    broken = CLIENT.replace("time.sleep(0.05)", "raise ValueError('no labels')")
    (project / "client.py").write_text(broken, encoding="utf-8")
    with pytest.raises(defl.RunFailed, match="no labels") as failed:
        run(project, rounds=2, out=tmp_path / "out", progress=False)
    assert failed.value.result.rounds == ()
    assert "no round closed" in str(failed.value.result)

    (project / "client.py").write_text(CLIENT, encoding="utf-8")
    lines: list[str] = []
    result = run(
        project,
        rounds=2,
        out=tmp_path / "out",
        progress=False,
        watch=lambda p: lines.extend(p.lines),
    )

    assert result.complete
    assert result.agreed
    assert not any("no labels" in line for line in lines)


@pytest.mark.slow
def test_the_nodes_of_a_killed_run_exit_by_themselves(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(
        "-m", "defl.cli.main", "run", str(project), "--rounds", "500", "--out", str(out)
    )
    output_until(process, "round 1 of 500 closed")
    assert len(processes_of(out)) > 4
    process.kill()
    process.communicate(timeout=LIMIT_S)

    until = time.monotonic() + LIMIT_S
    while processes_of(out):
        assert time.monotonic() < until
        time.sleep(0.2)


def test_records_of_an_interrupted_run_survive_it(tmp_path: Path) -> None:
    omission = defl.Omission("b", OmissionReason.LATE, "2 s")
    record = RoundRecord(
        number=1,
        metrics={"a": {"loss": float("inf")}},
        training={"a": {"loss": 0.5}},
        omissions=(omission,),
        seconds=1.5,
    )
    write_records(tmp_path, [record])

    assert read_records(tmp_path) == [record]


def test_the_result_of_an_interrupted_run_compares_no_models() -> None:
    result = Result(
        members=("a", "b"),
        rounds=(RoundRecord(number=1),),
        rounds_planned=3,
        digests={"a": "aa", "b": "aa"},
        traffic={},
        seconds=1.0,
        folder=Path("somewhere"),
    )

    assert "hold the same model" in str(result)
    assert "same model" not in str(replace(result, interrupted=True))
    assert "interrupted" in str(replace(result, interrupted=True))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--attack", "node-9=sign_flip"), "no member is named 'node-9'"),
        (("--attack", "node-1=flip"), "no attack is named 'flip'"),
        (("--attack", "node-1"), "MEMBER=NAME"),
        (("--kill", "node-1"), "MEMBER@ROUND"),
        (("--kill", "node-1@4"), "choose 1 to 3"),
        (("--kill", "1@2", "--kill", "2@2"), "cannot be killed in one round"),
        (("--nodes", "3"), "4 to 100 members"),
        (("--run-config", "a=1"), "name one project"),
        (("--out", "/proc/nodes"), "no folder can be created there"),
    ],
)
def test_an_impossible_run_is_refused_and_leaves_no_folder(
    project: Path, options: tuple[str, ...], reason: str
) -> None:
    refused = command("run", project, *options)

    assert refused.code == 2
    assert reason in refused.text
    assert list((project.parent / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("round = 3", "there is no key 'round'; did you mean 'rounds'?"),
        ('rounds = "3"', "line 1"),
        ("rounds 3", "not TOML"),
        ("work_time_max_s = 0", "work_time_max_s"),
    ],
)
def test_a_mistake_in_defl_toml_is_reported_with_its_file(
    project: Path, text: str, reason: str
) -> None:
    (project / "defl.toml").write_text(text, encoding="utf-8")

    with pytest.raises(UserError) as refused:
        run(project)

    assert str(refused.value).startswith(str(project / "defl.toml"))
    assert reason in str(refused.value)


def test_clean_deletes_only_the_users_folders_of_finished_runs(
    project: Path, tmp_path: Path
) -> None:
    place = tmp_path / "tmp"
    for name in ("defl-run-over", "defl-run-active", "defl-other", "somebody"):
        (place / name / "node-0").mkdir(parents=True)
        (place / name / "node-0" / "node.key").write_text("secret", encoding="utf-8")
    (place / "defl-run-link").symlink_to(project)

    with held(place / "defl-run-active"):
        assert {left.folder.name: left.in_use for left in left_overs()} == {
            "defl-run-over": False,
            "defl-run-active": True,
        }
        listed = command("clean", "--dry-run")
        assert "defl-run-over" in listed.text
        assert (place / "defl-run-over").exists()
        done = command("clean", "--yes")

    assert (done.code, "deleted 1 folder" in done.text) == (0, True)
    assert sorted(path.name for path in place.iterdir()) == [
        "defl-other",
        "defl-run-active",
        "defl-run-link",
        "somebody",
    ]
    assert (project / "client.py").exists()


# --- Arguments that cannot be --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"nodes": "4"}, "nodes is a whole number, not '4'"),
        ({"nodes": 4.0}, "nodes is a whole number, not 4.0"),
        ({"rounds": 1.5}, "rounds is a whole number, not 1.5"),
        ({"attacks": [3]}, "name members and what happens to each: attacks={3: 'sign_flip'}"),
        ({"kills": [3]}, "name members and what happens to each: kills={3: 1}"),
        (
            {"weights": {0: 7, "node-0": 1}},
            "a member is named twice, once by its number: [0, 'node-0']",
        ),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused_before_anything_is_made(
    project: Path, tmp_path: Path, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError) as refused:
        run(project, out=tmp_path / "out", **arguments)

    assert str(refused.value) == reason
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_user_is_refused_even_with_a_plan_in_it(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.json").write_text("{}", encoding="ascii")
    real = Path.stat

    def stat_of_another(path: Path, **options: Any) -> Any:
        status = real(path, **options)
        return os.stat_result([*status[:4], 12345, *status[5:]]) if path == out else status

    monkeypatch.setattr(Path, "stat", stat_of_another)

    with pytest.raises(UserError, match="belongs to another user"):
        run(project, out=out)
