"""The demo: what it compares and shows, and when it fails."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from sklearn.datasets import load_digits

from defl.cli import demo as command
from defl.cli.demo_view import live_view, table
from defl.committee import DEFAULTS
from defl.errors import UserError
from defl.ids import Round
from defl.lab.attacks.attacks import attack_named
from defl.lab.datasets.digits import digits
from defl.lab.experiments.demo import Demo, DemoPlan
from defl.lab.experiments.digits import Digits, part_file, write_parts
from defl.lab.experiments.in_process import trained_by_server
from defl.lab.experiments.poisoned import PoisonedClient
from defl.results import MemberTraffic, Omission, OmissionReason, Result, RoundRecord
from defl.running import MemberNow, MemberState, RunProgress

LIMIT_S = 180.0
SEVEN = DemoPlan()


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> list[Digits]:
    folder = tmp_path_factory.mktemp("digits")
    write_parts(folder, SEVEN.nodes, seed=1)
    return [Digits(part_file(folder, number)) for number in range(SEVEN.nodes)]


def test_one_poisoned_client_of_seven_destroys_the_mean_but_no_robust_rule(
    clients: list[Digits],
) -> None:
    attack = PoisonedClient(clients[-1], attack_named(SEVEN.attack), node=6)
    attacked = [*clients[:-1], attack]

    def last(members: list[Digits | PoisonedClient], rule: str, faults_max: int) -> float:
        return list(trained_by_server(members, rule, faults_max, SEVEN.rounds))[-1]["accuracy"]

    alone = last([*clients], "fed_avg", 0)
    assert alone > 0.93
    assert last(attacked, "fed_avg", 0) < 0.3
    for rule in (DEFAULTS.aggregation, "multi_krum"):
        assert last(attacked, rule, 2) > alone - 0.02


def test_a_sign_flipping_client_sends_its_negated_change(clients: list[Digits]) -> None:
    weights = clients[0].initial_weights()
    honest, _ = clients[0].train(weights, Round(1))
    attack = PoisonedClient(clients[0], attack_named("sign_flip_4"))

    sent, _ = attack.train(weights, Round(1))

    for name, start in weights.items():
        np.testing.assert_allclose(sent[name] - start, -4 * (honest[name] - start), atol=1e-5)


def test_nodes_share_no_training_images_and_none_trains_on_test_images(
    clients: list[Digits],
) -> None:
    rows = [{row.tobytes() for row in client._images} for client in clients]
    test = {row.tobytes() for row in clients[0]._test_images}

    assert not set.intersection(*rows)
    assert len(set.union(*rows)) == sum(len(part) for part in rows)
    assert not test & set.union(*rows)


@pytest.mark.slow
def test_the_demo_of_four_real_nodes_succeeds_without_a_terminal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "defl.cli.main", "demo", "--nodes", "4", "--rounds", "4", "--json",
         "--attack", "sign_flip_4", "--plot", str(tmp_path / "p.svg")],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["digests_equal"]
    assert len(report["digests"]) == 3
    assert report["rounds_closed"] == 4
    assert report["accuracy"]["fedavg_attacked"] < 0.4
    assert report["accuracy"]["defl_attacked"] > report["accuracy"]["no_attack"] - 0.05
    assert all("node-3" in nodes for nodes in report["left_out"].values())
    assert sorted(report["left_out"]) == ["1", "2", "3", "4"]
    assert "node-1 was killed (SIGKILL)" in done.stderr
    assert "node-1 was started again" in done.stderr
    assert (tmp_path / "p.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")


GOOD = Result(
    members=("node-0", "node-1", "node-6"),
    rounds=tuple(
        RoundRecord(
            number=number,
            metrics={"node-0": {"accuracy": 0.95}},
            omissions=(Omission("node-6", OmissionReason.BY_RULE),),
        )
        for number in range(1, 11)
    ),
    rounds_planned=10,
    byzantine={"node-6": "sign_flip"},
    digests={"node-0": "aa", "node-1": "aa", "node-6": "cc"},
    traffic={name: MemberTraffic(1, 1) for name in ("node-0", "node-1", "node-6")},
    seconds=1.0,
    folder=Path("somewhere"),
    commit_ms={"node-0": {"p50": 20.0, "p99": 30.0}},
    disk_bytes={"node-0": 1, "node-1": 1, "node-6": 1},
)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (GOOD, 0),
        (replace(GOOD, digests={"node-0": "aa", "node-1": "bb"}), 1),
        (replace(GOOD, digests={"node-0": "aa", "node-1": None}), 1),
        (replace(GOOD, rounds=GOOD.rounds[:9]), 1),
    ],
)
def test_the_exit_code_shows_whether_all_rounds_closed_on_one_model(
    result: Result, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Demo, "run", lambda *_: result)
    monkeypatch.setattr(Demo, "by_server", lambda *_, **__: (0.5,) * 10)

    done = CliRunner().invoke(command.demo, [])

    assert done.exit_code == code, done.output
    assert f"node-6 in {len(result.rounds)} of 10 rounds" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--rounds", "3"], "at least 4 rounds"),
        (["--nodes", "3"], "at least 4 nodes"),
        (["--plot", "picture.gif"], "ends in one of"),
        (["--plot", "nowhere/picture.png"], "no such folder"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(arguments: list[str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        CliRunner().invoke(command.demo, arguments, catch_exceptions=False)


PROGRESS = RunProgress(
    rounds_closed=2,
    rounds=10,
    members=(
        MemberNow("node-0", MemberState.RUNNING, 2, {"accuracy": 0.91}, 35.0, 2_000_000, 3_000_000),
        MemberNow("node-1", MemberState.KILLED, 1),
    ),
    lines=("node-1 was killed (SIGKILL) in round 2",),
)


def test_the_live_table_shows_rounds_accuracy_latency_traffic_and_events() -> None:
    screen = io.StringIO()
    Console(file=screen, width=100).print(table(PROGRESS, ["model of round 1: without node-6"]))

    figures = ("round 2 of 10 closed", "91.0 %", "35 ms", "2.0 MB", "3.0 MB", "killed")
    for shown in (*figures, "model of round 1: without node-6"):
        assert shown in screen.getvalue()


def test_without_a_terminal_or_rich_events_are_plain_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with live_view(err=False) as show:
        show(PROGRESS)

    assert capsys.readouterr().out == "node-1 was killed (SIGKILL) in round 2\n"


# Loaded by every process: hides the packages that only extras install.
NO_EXTRAS = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = {"flwr", "matplotlib", "numba", "rich", "scipy", "sklearn", "torch"}
        return None if name in hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


@pytest.mark.slow
def test_the_demo_runs_without_any_extra_and_says_what_it_leaves_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_EXTRAS, encoding="utf-8")
    path = os.pathsep.join((str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])))

    done = subprocess.run(
        [sys.executable, "-m", "defl.cli.main", "demo", "--nodes", "4", "--rounds", "4",
         "--plot", "p.png"],
        capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "p.png will not be drawn: matplotlib is not installed" in done.stderr
    assert "round 4 of 4 closed" in done.stdout
    assert "the same at all 3 honest nodes" in done.stdout


def test_the_bundled_digits_are_those_of_scikit_learn() -> None:
    theirs = load_digits()
    order = np.random.default_rng(5).permutation(len(theirs.target))

    ours = digits(np.random.default_rng(5), test=360)

    np.testing.assert_array_equal(
        np.concatenate([ours.test_images, ours.train_images]), theirs.images[order]
    )
    np.testing.assert_array_equal(
        np.concatenate([ours.test_labels, ours.train_labels]), theirs.target[order]
    )
