"""The demonstration: what it compares, what it shows, and when it fails."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from defl.aggregation.rules import DEFAULT
from defl.cli import demo as command
from defl.cli.demo_view import Lines, table
from defl.errors import UserError
from defl.ids import Round
from defl.lab.attacks.attacks import attack_named
from defl.lab.experiments.demo import Demo, DemoPlan, Moment, NodeNow, Outcome, Told
from defl.lab.experiments.digits import Digits, part_file, write_parts
from defl.lab.experiments.in_process import trained_by_server
from defl.lab.experiments.poisoned import Poisoned

LIMIT_S = 180.0
SEVEN = DemoPlan()


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> list[Digits]:
    folder = tmp_path_factory.mktemp("digits")
    write_parts(folder, SEVEN.nodes, seed=1)
    return [Digits(part_file(folder, number)) for number in range(SEVEN.nodes)]


def test_one_poisoned_client_of_seven_destroys_the_mean_and_no_robust_rule(
    clients: list[Digits],
) -> None:
    attack = Poisoned(clients[-1], attack_named(SEVEN.attack), np.random.default_rng(6))
    attacked = [*clients[:-1], attack]

    def last(members: list[Digits | Poisoned], rule: str, faults_max: int) -> float:
        return list(trained_by_server(members, rule, faults_max, SEVEN.rounds))[-1]["accuracy"]

    alone = last([*clients], "fed_avg", 0)
    assert alone > 0.93
    assert last(attacked, "fed_avg", 0) < 0.3
    for rule in (DEFAULT, "multi_krum"):
        assert last(attacked, rule, 2) > alone - 0.02


def test_a_poisoned_client_sends_its_change_turned_around(clients: list[Digits]) -> None:
    weights = clients[0].initial_weights()
    honest, _ = clients[0].train(weights, Round(1))
    attack = Poisoned(clients[0], attack_named("sign_flip_4"), np.random.default_rng(1))

    sent, _ = attack.train(weights, Round(1))

    for name, start in weights.items():
        np.testing.assert_allclose(sent[name] - start, -4 * (honest[name] - start), atol=1e-5)


def test_everybody_has_own_images_and_nobody_those_of_the_test(clients: list[Digits]) -> None:
    rows = [{row.tobytes() for row in client._images} for client in clients]
    test = {row.tobytes() for row in clients[0]._test_images}

    assert not set.intersection(*rows)
    assert len(set.union(*rows)) == sum(len(part) for part in rows)
    assert not test & set.union(*rows)


def test_a_demonstration_of_four_real_nodes_ends_well_without_a_terminal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "defl.cli.main", "demo", "--nodes", "4", "--rounds", "4", "--json",
         "--attack", "sign_flip_4", "--plot", str(tmp_path / "p.svg")],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["digests_equal"]
    assert len(told["digests"]) == 3
    assert told["rounds_closed"] == 4
    assert told["accuracy"]["fedavg_attacked"] < 0.4
    assert told["accuracy"]["defl_attacked"] > told["accuracy"]["no_attack"] - 0.05
    assert all("node-3" in nodes for nodes in told["left_out"].values())
    assert sorted(told["left_out"]) == ["1", "2", "3", "4"]
    assert "node-1 was killed (SIGKILL)" in done.stderr
    assert "node-1 was started again" in done.stderr
    assert (tmp_path / "p.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")


GOOD = Outcome(
    rounds_closed=10,
    digests={"node-0": "aa", "node-1": "aa"},
    accuracy=0.95,
    told=Told({10: 0.95}, {10: {"node-6": "by the rule"}}),
    commit_ms={"p50": 20.0, "p99": 30.0},
    bytes_sent=1,
    bytes_received=1,
    disk_bytes=1,
    news=(),
)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (GOOD, 0),
        (replace(GOOD, digests={"node-0": "aa", "node-1": "bb"}), 1),
        (replace(GOOD, digests={"node-0": "aa", "node-1": None}), 1),
        (replace(GOOD, rounds_closed=9), 1),
    ],
)
def test_the_exit_code_says_whether_all_rounds_closed_on_one_model(
    outcome: Outcome, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Demo, "run", lambda *_: outcome)
    monkeypatch.setattr(Demo, "by_server", lambda *_, **__: (0.5,) * 10)

    done = CliRunner().invoke(command.demo, ["--out", str(tmp_path / "new")])

    assert done.exit_code == code
    assert "node-6 in 1 of 10 rounds" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rounds", "3"], "at least 4 rounds"),
        (["--nodes", "3"], "at least 4 nodes"),
        (["--plot", "picture.gif"], "ends in one of"),
        (["--plot", "nowhere/picture.png"], "no such folder"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_anything_starts(
    arguments: list[str], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        CliRunner().invoke(command.demo, arguments, catch_exceptions=False)


MOMENT = Moment(
    rounds_closed=2,
    nodes=(
        NodeNow("node-0", "runs", 2, 0.91, 35.0, 2_000_000, 3_000_000),
        NodeNow("node-1", "killed", 1, None, None, 0, 0),
    ),
    told=Told({2: 0.91}, {2: {"node-6": "by the rule", "node-1": "no update in time"}}),
    news=("node-1 was killed (SIGKILL) in round 2",),
)


def test_the_live_table_shows_rounds_accuracy_latency_bytes_and_who_is_left_out() -> None:
    screen = io.StringIO()
    Console(file=screen, width=100).print(table(SEVEN, MOMENT))

    figures = ("round 2 of 10 closed", "91.0 %", "35 ms", "2.0 MB", "3.0 MB", "killed")
    reasons = ("left out of round 2", "node-6: by the rule", "node-1: no update in time")
    for shown in (*figures, *reasons):
        assert shown in screen.getvalue()


def test_without_a_terminal_each_thing_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(SEVEN, err=False)
    lines.show(MOMENT)
    lines.show(MOMENT)

    told = capsys.readouterr().out.splitlines()
    assert len(told) == len(set(told)) == 6
    assert told[0] == "node-1 was killed (SIGKILL) in round 2"
    assert "model of round 2: 91.0 %" in told[3]
