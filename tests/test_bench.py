"""`defl bench`: small runs of the benchmarks, from the command to the files."""

import gzip
import json
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from defl.cli.main import cli
from defl.errors import PreconditionBroken, UserError
from defl.lab.datasets.feature_images import feature_images
from defl.lab.datasets.mnist import mnist
from defl.lab.datasets.task import Features
from defl.lab.experiments import robustness
from defl.lab.experiments.bench_memory import Peaks, higher, round_seconds
from defl.lab.experiments.bench_round import WARM_UP, timed_rounds
from defl.lab.experiments.paper.memory import ResidentMemory, resident_memory
from defl.lab.experiments.processor_times import KINDS, ProcessorTimes
from defl.lab.experiments.robustness_cell import RobustnessCell, RobustnessResult, run_cell
from defl.lab.experiments.robustness_goals import GoalOutcome
from defl.lab.experiments.robustness_sizes import sizes_markdown
from defl.lab.experiments.robustness_table import heat_map, markdown, mean_accuracies
from defl.lab.experiments.round_phases import critical_paths, durations
from defl.lab.experiments.sampling import sampled
from defl.lab.partition import cut
from defl.schema import Codec
from support.in_driver import InDriver


@pytest.fixture
def tiny_mnist(tmp_path: Path) -> Path:
    """Four IDX files with images whose class is the position of a bright bar."""
    rng = np.random.default_rng(1)
    for kind, count in (("train", 600), ("t10k", 200)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        images = rng.integers(0, 40, (count, 12, 12)).astype(np.uint8)
        images[np.arange(count), labels] = 255
        for name, array in ((f"{kind}-images-idx3", images), (f"{kind}-labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
            packed = gzip.compress(head + array.tobytes())
            (tmp_path / f"{name}-ubyte.gz").write_bytes(packed)
    return tmp_path


def test_bench_rules_prints_times_and_what_was_skipped() -> None:
    command = ["bench", "rules", "--n", "5", "--d", "5000", "--repeats", "1", "--no-rivals"]
    json_run = CliRunner().invoke(cli, [*command, "--json"], catch_exceptions=False)
    result = json.loads(json_run.stdout)
    assert result["rules"]["multi_krum"]["seconds"] > 0
    assert result["rules"]["multi_krum"]["ratio_to_read"] > 0
    assert result["rules"]["multi_krum"]["cpu_ratio_to_read"] > 0
    assert result["rules"]["multi_krum"]["ratio_to_byzfl"] is None
    assert result["skipped"] == ["byzfl", "flwr"]
    table = CliRunner().invoke(cli, command, catch_exceptions=False).stdout
    assert "not compared" in table


def test_time_outside_training_excludes_the_longest_training_of_the_round() -> None:
    def log(training_s: float, late_s: float) -> list[dict[str, float | str]]:
        lines: list[dict[str, float | str]] = []
        for number in range(1, WARM_UP + 3):
            lines += [
                {"event": "trained", "round": number, "time": 0.0, "seconds": training_s},
                {"event": "round closed", "round": number, "time": 10.0 * number + late_s},
            ]
        return lines

    timed = timed_rounds([log(2.0, 0.0), log(6.0, 0.5)])

    assert [round_.outside_s for round_ in timed] == [4.0, 4.0]
    assert {(round_.longest_training_s, round_.shortest_training_s) for round_ in timed} == {
        (6.0, 2.0)
    }


def test_the_peak_of_a_node_is_that_of_its_processes_at_one_moment(tmp_path: Path) -> None:
    def process(pid: int, own_kb: int, mapped_kb: int) -> ResidentMemory:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        text = f"Name:\ta: b\nRssAnon:\t{own_kb} kB\nRssFile:\t{mapped_kb} kB\nRssShmem:\t1 kB\n"
        (tmp_path / str(pid) / "status").write_text(text, encoding="ascii")
        return resident_memory(pid, tmp_path)

    peaks = Peaks(0, 0, dict.fromkeys(KINDS, 0))
    for node, client, arithmetic in ((99, 0, 0), (9, 59, 0), (9, 9, 49)):
        processes = (("node", node), ("client", client), ("arithmetic", arithmetic))
        now = [(kind, process(pid, kb, 2 * kb)) for pid, (kind, kb) in enumerate(processes)]
        peaks = higher(peaks, now)

    assert peaks == Peaks(
        102 * 1024, 198 * 1024, {"node": 102400, "client": 61440, "arithmetic": 51200}
    )
    assert resident_memory(7, tmp_path) == (0, 0)  # it has ended
    log = [
        {"event": "started", "time": 1.0},
        {"event": "round closed", "time": 4.0},
        {"event": "round closed", "time": 6.5},
    ]
    assert round_seconds(log) == [3.0, 2.5]


def test_phases_follow_the_update_that_was_submitted_last() -> None:
    """Member 1 of 4 is last; its certificate needs its own ack and those of two others."""

    def log(me: int, submitted: float, received: float) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = [
            {"event": "round closed", "round": 6, "time": 1.0},
            {"event": "trained", "round": 7, "time": 4.25, "ended": 4.0, "seconds": 2.0},
            {"event": "offered", "round": 7, "time": 4.5},
        ]
        for author in {0, 1, 2, 3} - {me}:
            of = {"author": author, "round": 7, "digest": f"update of {author}"}
            lines += [
                {"event": "received", "digest": of["digest"], "time": received},
                {"event": "acknowledged", **of, "time": received + 0.25},
            ]
        upd = {"kind": "UPD", "round": 7, "ms": 1000 * (9.0 - submitted)}
        return [
            *lines,
            {"event": "committed", **upd, "time": 9.0},
            {"event": "round closed", "round": 7, "time": 9.0},
        ]

    logs = [log(0, 6.5, 6.0), log(1, 8.0, 5.0), log(2, 7.0, 7.0), log(3, 7.5, 7.5)]

    assert critical_paths(logs, quorum=3, first_round=7) == [(1.0, 2.0, 4.0, 4.5, 7.0, 8.0, 9.0)]
    assert durations(critical_paths(logs, 3, 7)) == [1.0, 2.0, 0.5, 2.5, 1.0, 1.0]


def test_processor_time_of_a_process_is_that_between_two_times() -> None:
    before = time.time()
    times = ProcessorTimes([os.getpid()])
    with sampled(times.sample, every_s=0.001):
        used = time.process_time()
        while time.process_time() < used + 0.01:
            pass

    assert times.used(before, time.time())["node"] >= 0.01
    assert times.used(before - 2, before - 1)["node"] == 0


@pytest.mark.parametrize("attack", robustness.ATTACKS)
def test_every_attack_of_the_table_runs(attack: str, tiny_mnist: Path) -> None:
    data = mnist(tiny_mnist)
    result = run_cell(RobustnessCell("multi_krum", attack, 1.0, 4, seed=1, rounds=2), data)
    assert 0 <= result.accuracy <= 1


def test_features_train_as_small_images() -> None:
    rng = np.random.default_rng(1)
    rows = rng.uniform(0, 6, (60, 80)).astype(np.float16)
    labels = rng.integers(0, 3, 60)
    data = feature_images(Features(rows[:40], labels[:40], rows[40:], labels[40:], classes=3))
    assert np.abs(data.scaled(data.train_images).reshape(40, 80) - rows[:40]).max() < 0.02

    result = run_cell(RobustnessCell("adaptive", "backdoor", None, 4, seed=1, rounds=2), data)

    assert 0 <= result.accuracy <= 1
    too_large = Features(rows + 1, labels, rows, labels, classes=3)
    with pytest.raises(PreconditionBroken, match="are no images"):
        feature_images(too_large)


def test_cell_is_reproducible(tiny_mnist: Path) -> None:
    data = mnist(tiny_mnist)
    cell = RobustnessCell("trimmed_mean", "gaussian", 0.3, 4, seed=3, rounds=3)
    assert run_cell(cell, data) == run_cell(cell, data)


def test_a_cell_says_how_often_the_worst_off_honest_member_was_left_out(tiny_mnist: Path) -> None:
    data = mnist(tiny_mnist)
    cell = RobustnessCell("multi_krum", "none", 0.3, 4, seed=1, rounds=6, away=2)
    assert [len(cell.present(round_)) for round_ in range(6)] == [4, 4, 4, 3, 3, 4]

    krum = run_cell(cell, data)  # leaves out one update in every round
    everybody = run_cell(replace(cell, rule="fed_avg"), data)

    assert 1 / 4 < krum.honest_left_out < 1 / 3
    assert krum.worst_left_out is not None
    assert krum.worst_left_out >= krum.honest_left_out
    assert krum.returned_left_out in (0, 1)
    assert everybody.worst_left_out == everybody.returned_left_out == 0


def test_a_setting_misses_the_goals_that_one_seed_or_one_member_misses() -> None:
    fine = RobustnessResult(0.9, 0.0, 0.0, 0.0, "", worst_left_out=0.1, worst_left_out_late=0.1)
    unfair = replace(fine, returned_left_out=0.11)
    assert GoalOutcome([-0.5, -0.5], [fine, fine]).missed("none") == []
    assert GoalOutcome([-3.1, 3.0], [fine, unfair]).missed("none") == ["seed", "left out"]
    assert GoalOutcome([-0.5, -0.6], [fine, fine]).missed("none") == ["mean"]
    assert GoalOutcome([-0.4, -0.4], [unfair, unfair]).missed("sign_flip") == ["mean"]
    assert GoalOutcome([-5.1, 9.0], [fine, fine]).missed("sign_flip") == ["seed"]


def test_the_table_compares_the_adaptive_rule_with_its_goals(tmp_path: Path) -> None:
    rules = ("--rule", "fed_avg", "--rule", "multi_krum", "--rule", "adaptive")
    options = ("--dataset", "digits", "--members", "4", "--split", "iid", "--rounds", "4")
    cells = ("--attack", "none", "--attack", "gaussian", "--away", "1", "--engine", "processes:1")
    command = ["bench", "robustness", *rules, *options, *cells, "--out", str(tmp_path)]

    assert CliRunner().invoke(cli, command, catch_exceptions=False).exit_code == 0

    goals = (tmp_path / "goals.md").read_text(encoding="utf-8")
    assert "| 4 | i.i.d. | 4 | 1 | 1 | +0.00 | +0.0 | 0 %, 0 % | 0 %, 0 % | 0 %, 0 % |  |" in goals
    assert "| 4 | i.i.d. | 4 | 1 | 1 | +0.00 | +0.0 | gaussian |  |" in goals
    assert goals.count("1 of 1 lines miss nothing.") == 2

    with pytest.raises(UserError, match="never returns"):
        CliRunner().invoke(cli, [*command, "--away", "2"], catch_exceptions=False)


def test_members_of_different_size_are_weighed_beside_fedavg_by_size(tmp_path: Path) -> None:
    rules = ("--rule", "fed_avg", "--rule", "multi_krum", "--rule", "adaptive")
    options = ("--dataset", "digits", "--members", "4", "--split", "1", "--rounds", "3")
    cells = ("--attack", "none", "--attack", "sign_flip", "--engine", "processes:1")
    command = ["bench", "robustness", *rules, *options, *cells, "--out", str(tmp_path)]

    run = CliRunner().invoke(cli, [*command, "--sizes", "1:2:7"], catch_exceptions=False)

    assert run.exit_code == 0
    table = (tmp_path / "sizes.md").read_text(encoding="utf-8")
    assert (
        "| attack | seeds | fed_avg | fed_avg by size | multi_krum | adaptive | adaptive, w"
        in table
    )
    assert [line.split(" |")[0] for line in table.splitlines()[-3:]] == [
        "| none",
        "| sign_flip, smallest",
        "| sign_flip, largest",
    ]
    assert (tmp_path / "sizes.csv").read_text(encoding="utf-8").count("\n") == 16
    assert not (tmp_path / "robustness.md").exists()
    for wrong in (["--sizes", "1:x"], ["--sizes", "0:1"], ["--sizes", "1:2", "--away", "1"]):
        with pytest.raises(UserError, match="--sizes"):
            CliRunner().invoke(cli, [*command, *wrong], catch_exceptions=False)


def test_the_attackers_are_the_smallest_or_the_largest_members() -> None:
    cell = RobustnessCell("adaptive", "zero", 1.0, 7, seed=1, sizes="1:2:7")
    assert cell.member_sizes == [1, 1, 1, 2, 2, 7, 7]
    assert replace(cell, attacker="largest").member_sizes == [7, 7, 2, 2, 1, 1, 1]


def test_robustness_table_resumes_after_an_interruption(tiny_mnist: Path, tmp_path: Path) -> None:
    def recorded_in(counts: list[int]) -> Callable[[int, int], None]:
        return lambda done, _total: counts.append(done)

    before: list[int] = []
    out = tmp_path / "out"
    cells = robustness.planned(["fed_avg", "multi_krum"], ["none"], [4], seeds=[1], rounds=2)
    first = robustness.run_table(
        cells[:3], tiny_mnist, out, engine=InDriver(), progress=recorded_in(before)
    )
    kept = (out / "cells.jsonl").read_bytes()
    older = kept.replace(b"rounds", b"days"), kept.replace(b'"none"', b'"of another version"')
    others = b"5", b"[]", b"{}", b"\xff", *older, b'{"cell": {"rule": "cut sho'
    (out / "cells.jsonl").write_bytes(b"\n".join([kept, *others]))
    resumed: list[int] = []
    results = robustness.run_table(
        cells, tiny_mnist, out, engine=InDriver(), progress=recorded_in(resumed)
    )
    assert resumed[0] == 3
    assert len(results) == 6
    assert all(results[cell] == value for cell, value in first.items())
    assert (out / "robustness.csv").read_text(encoding="utf-8").count("\n") == 7
    assert "n = 4, i.i.d." in (out / "robustness.md").read_text(encoding="utf-8")
    assert "<svg" in (out / "robustness.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("attack", ["none", "nan", "min_max"])
def test_updates_go_through_the_codec(codec: Codec, attack: str, tiny_mnist: Path) -> None:
    data = mnist(tiny_mnist)
    plain = RobustnessCell("adaptive", attack, None, 4, seed=1, rounds=3)
    coded = run_cell(replace(plain, codec=codec), data)

    if codec is Codec.FP32:
        assert coded == run_cell(plain, data)
    if codec is Codec.INT8_MASKED:
        assert coded != run_cell(plain, data)
    assert 0 <= coded.accuracy <= 1


def test_with_several_codecs_the_table_shows_what_each_costs(tmp_path: Path) -> None:
    options = ("--dataset", "digits", "--rule", "adaptive", "--members", "4")
    attacks = ("--attack", "none", "--attack", "zero", "--attack", "mimic")
    few = ("--split", "iid", "--rounds", "2", "--seeds", "2", "--engine", "processes:1")
    codecs = ("--codec", "fp32", "--codec", "int8", "--codec", "int8_masked")
    command = ["bench", "robustness", *options, *attacks, *few, *codecs, "--out", str(tmp_path)]

    assert CliRunner().invoke(cli, command, catch_exceptions=False).exit_code == 0

    *_, head, _, none, zero, mimic, mean = (
        (tmp_path / "codecs.md").read_text(encoding="utf-8").splitlines()
    )
    assert head == "| attack | fp32 | int8 | int8_masked |"
    assert re.fullmatch(r"\| none \| [\d.]+ ± [\d.]+ (\| [+-][\d.]+ ± [\d.]+ ){2}\|", none)
    masked = [float(line.split("|")[4].split("±")[0]) for line in (zero, mimic, mean)]
    assert masked[2] == pytest.approx((masked[0] + masked[1]) / 2, abs=0.01)
    table = (tmp_path / "robustness.md").read_text(encoding="utf-8")
    assert "| attack | adaptive | adaptive int8 | adaptive int8_masked |" in table


def test_results_on_two_data_sets_are_never_mixed(tiny_mnist: Path, tmp_path: Path) -> None:
    on_digits = robustness.planned(["fed_avg"], ["backdoor"], [4], [7], 1, "digits")
    on_mnist = robustness.planned(["fed_avg"], ["backdoor"], [4], [7], 1)

    def run(cells: list[RobustnessCell], data: Path | None) -> None:
        robustness.run_table(cells, data, tmp_path, engine=InDriver(), progress=lambda *_: None)

    run(on_digits, None)
    with pytest.raises(UserError, match="holds results on digits"):
        run(on_mnist, tiny_mnist)
    assert "7,1,digits" in (tmp_path / "robustness.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("sizes", ["", "1:2"])
def test_runs_of_different_length_are_never_compared(sizes: str) -> None:
    short, long = (
        RobustnessCell(rule, "none", None, 4, 1, rounds, "digits", sizes=sizes)
        for rule, rounds in (("fed_avg", 2), ("adaptive", 40))
    )
    again = replace(short, rounds=40)
    accuracies = {short: 0.25, again: 0.75, long: 0.5}
    results = {c: RobustnessResult(share, 0, 0, 0, "") for c, share in accuracies.items()}
    table = sizes_markdown(results) if sizes else markdown(mean_accuracies(results))

    assert all(f"| {figure} |" in table for figure in ("25.0", "50.0", "75.0"))
    assert "2 rounds" in table


def test_heat_map_shows_every_mean_in_portable_colours() -> None:
    means = {
        (members, alpha, attack): {"fed_avg": 0.9, "adaptive": share}
        for members in (4, 7)
        for alpha in (None, 0.3)
        for attack, share in (("none", 0.9), ("nan", 0.1), ("zero", math.nan))
    }
    svg = heat_map(means)
    cells = re.findall(r'<rect x=.* fill="(.+?)"', svg)
    assert len(cells) == 2 * 2 * 3 * 2
    assert all(re.fullmatch("#[0-9a-f]{6}", fill) for fill in cells)
    assert len(set(cells)) == 3, "as good as without attack, lost, refused"
    labels = re.findall(r">([^<>]+)</text>", svg)
    assert labels.count("90.0") == 12 + 4
    assert labels.count("10.0") == labels.count("refused") == 4
    assert "n = 7, alpha = 0.3" in labels


def test_missing_data_error_names_the_option_and_the_variable(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="DEFL_DATA"):
        mnist(tmp_path)
    with pytest.raises(UserError, match="--data"):
        CliRunner().invoke(
            cli, ["bench", "robustness"], catch_exceptions=False, env={"DEFL_DATA": ""}
        )


def test_small_alpha_gives_skewed_parts() -> None:
    labels = np.repeat(np.arange(10), 100)
    even = cut(labels, 4, None, np.random.default_rng(1))
    uneven = cut(labels, 4, 0.1, np.random.default_rng(1))
    assert all(len(part) == 250 for part in even + uneven)
    most = [np.bincount(labels[part], minlength=10).max() / 250 for part in uneven]
    assert min(most) > 0.3


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (("rules", "--n", "4", "--faults", "4"), "faults 0 to n - 1"),
        (("rules", "--rule", "mean"), "no aggregation rule is named 'mean'"),
        (("robustness", "--rule", "mean"), "no aggregation rule is named 'mean'"),
        (("robustness", "--attack", "nothing"), "no attack is named 'nothing'"),
        (("robustness", "--attacker", "largest"), "--attacker goes with --sizes"),
        (("robustness", "--sizes", "1:" + "9" * 5000), "whole numbers from 1 to 1000"),
        (("memory", "--mb", "nan"), "must be above 0, not nan"),
        (("memory", "--mb", "inf"), "must be above 0, not inf"),
    ],
)
def test_invalid_options_are_refused_with_the_allowed_values(
    options: tuple[str, ...], answer: str
) -> None:
    with pytest.raises(UserError, match=answer):
        CliRunner().invoke(cli, ["bench", *options], catch_exceptions=False)


@pytest.mark.parametrize("option", ["--seeds=0", "--first-seed=-1", "--rounds=0", "--members=3"])
def test_a_number_out_of_range_is_refused_before_anything_runs(option: str) -> None:
    refused = CliRunner().invoke(cli, ["bench", "robustness", option])

    assert refused.exit_code == 2
    assert "is not in the range" in refused.output
