"""Which updates a merge keeps: by distance, by number, at random; and how models are judged."""

import numpy as np
import pytest
from tiny import SETTING

from defl.aggregation.rules import RULES
from defl.errors import UserError
from defl.ids import NodeId, Round
from defl.lab.baselines.machine import Contribution
from defl.lab.experiments.paper import study
from defl.lab.experiments.paper.accuracy import AccuracyCell, AccuracyResult, Witness
from defl.lab.experiments.paper.merges import WatchedMerge
from defl.schema import Entry, Role, Schema

SCHEMA = Schema((Entry("w", (2,)),))
BASE = np.zeros(2, dtype=np.float32)
NEAR = ([1.0, 0.0], [1.1, 0.0], [1.3, 0.0], [5.0, 0.0])  # from the best neighbours to an outlier


def updates() -> list[Contribution]:
    return [
        Contribution(NodeId(i), np.array(row, dtype=np.float32), samples=10 * (i + 1))
        for i, row in enumerate(NEAR)
    ]


def merged(name: str, rounds: int = 1) -> tuple[list[np.ndarray], WatchedMerge]:
    watched = WatchedMerge(name, SCHEMA, 4, seed=1)
    return [watched(updates(), BASE, Round(round_ + 1)) for round_ in range(rounds)], watched


def test_multi_krum_keeps_three_of_four_and_the_papers_two() -> None:
    [three], by_three = merged("multi_krum")
    [two], by_two = merged("multi_krum_two")

    assert by_three.left_out == (0, 0, 0, 1)
    assert by_two.left_out == (0, 0, 1, 1)
    assert three[0] == pytest.approx(np.mean([1.0, 1.1, 1.3]))
    assert two[0] == pytest.approx(1.05)


def test_the_papers_rule_of_two_scores_by_one_neighbour() -> None:
    rows = [update.row for update in updates()]
    result = RULES["multi_krum_two"](rows, BASE, 1, [bytes([i]) for i in range(4)])

    assert result.scores == pytest.approx([0.01, 0.01, 0.04, 3.7**2], rel=0.01)


def test_random_choice_changes_each_round_and_follows_from_the_seed() -> None:
    models, watched = merged("random_3", rounds=60)
    again, _ = merged("random_3", rounds=60)

    assert sum(watched.left_out) == pytest.approx(1)
    assert min(watched.left_out) > 0.1
    assert len({model.tobytes() for model in models}) == 4
    assert [a.tobytes() for a in models] == [b.tobytes() for b in again]


@pytest.mark.parametrize("name", ["random_0", "random_5", "random_x", "median_of_luck"])
def test_unknown_merge_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"random_1 to random_4|no aggregation rule"):
        WatchedMerge(name, SCHEMA, 4, seed=1)


def test_study_varies_only_the_merge() -> None:
    cells = study.planned(SETTING, repeats=2)
    rest = {
        (cell.nodes, cell.byzantine, cell.learning, cell.rounds, cell.rounds_judged)
        for repeats in cells.values()
        for cell in repeats
    }

    assert len(rest) == 1
    assert len(cells) == 2 * len(study.MERGES)


def test_study_reports_left_out_nodes_and_unused_data() -> None:
    cells = study.planned(SETTING, repeats=1)
    results = {cell: cell.run(None) for repeats in cells.values() for cell in repeats}
    text = "\n".join(study.as_markdown(cells, results, "Tiny."))

    for (_, merge), [cell] in cells.items():
        expected = {"random_3": 1, "multi_krum": 1, "random_2": 2, "multi_krum_two": 2}
        assert sum(results[cell].left_out) == pytest.approx(expected.get(merge or "", 0))
    assert "| all 4, by samples (FedAvg) |" in text
    assert "non-i.i.d." in text
    brief = study.as_brief_markdown(cells, results, "Tiny.")
    assert sum(line.startswith("| all 4") for line in brief) == 2


def invented(**lost: float) -> tuple[study.Cells, study.Results]:
    """Each merge loses this much of 0.9 on non-i.i.d. data, and a tenth of it on i.i.d. data."""
    cells = study.planned(SETTING, repeats=1)
    shares = {study.EVEN: 0.1, study.UNEVEN: 1.0}
    return cells, {
        cell: AccuracyResult(0.9 - shares[words] * lost.get(merge or "", 0.0), 3, (1, 1, 1, 1))
        for (words, merge), [cell] in cells.items()
    }


def test_loss_by_number_and_loss_by_choice_are_distinguished() -> None:
    by_number = invented(random_3=0.02, multi_krum=0.021, random_2=0.05, multi_krum_two=0.048)
    by_choice = invented(random_3=0.001, multi_krum=0.03, random_2=0.01, multi_krum_two=0.06)

    assert [f.confirmed for f in study.findings(*by_number)] == [True, False]
    assert [f.confirmed for f in study.findings(*by_choice)] == [True, True]
    assert "0.922 to 0.836" in study.findings(*by_choice)[0].paper
    assert "the number of updates costs more" in study.explanation(*by_number)
    assert "reduces the loss from 0.048 to 0.021" in study.explanation(*by_number)
    assert "choosing the closest 2 makes no difference (-0.002)" in study.explanation(*by_number)
    assert "the choice of updates costs more" in study.explanation(*by_choice)
    assert "choosing the closest 2 costs 0.050 more" in study.explanation(*by_choice)


def test_no_loss_on_non_iid_data_contradicts_the_paper() -> None:
    assert [f.confirmed for f in study.findings(*invented())] == [False, False]


class Normed:
    """A client with a statistic that stays local; its accuracy is that statistic."""

    def initial_weights(self):
        return {"w": np.zeros(1, dtype=np.float32), "mean": np.zeros(1, dtype=np.float32)}

    def roles(self):
        return {"mean": Role.LOCAL}

    def train(self, weights, _round):
        return {"w": weights["w"], "mean": weights["mean"] + np.float32(0.25)}, {}

    def evaluate(self, weights):
        return {"accuracy": float(weights["mean"][0])}


def test_model_is_judged_with_the_judged_nodes_local_entries() -> None:
    witness = Witness(Normed())
    weights = witness.initial_weights()
    for round_ in (1, 2):
        weights, _ = witness.train(weights, Round(round_))

    assert witness.accuracy({"w": np.zeros(1, dtype=np.float32)}) == 0.5


def test_accuracy_is_the_mean_over_the_last_rounds() -> None:
    cell = AccuracyCell("fl", 4, 0, "none", None, SETTING.learning, 3, 2, 1)
    result = cell.judged(lambda _node, _flipped: Normed(), (1, 1, 1, 1))

    # After rounds 2 and 3 node 0 has trained 2 and 3 times.
    assert result.accuracy == pytest.approx((0.5 + 0.75) / 2)
    assert result.rounds_closed == 3
