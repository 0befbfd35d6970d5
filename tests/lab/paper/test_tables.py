"""The cells of the tables, and the paper's statements checked against numbers."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import SETTING

from defl.aggregation.rules import RULES
from defl.lab.experiments.cells import SYSTEMS
from defl.lab.experiments.paper import study
from defl.lab.experiments.paper.claims import CLAIMS, first_screen
from defl.lab.experiments.paper.findings import findings, level
from defl.lab.experiments.paper.report import PARTS, part_named
from defl.lab.experiments.paper.settings import SETTINGS, SYSTEM_WORDS, TABLES, DataKind, Scale
from defl.lab.experiments.paper.tables import TableEntry, paper_accuracies, planned
from defl.lab.experiments.threats import THREATS


def papers_own(name: str) -> list[TableEntry]:
    """The table as if we had measured exactly the paper's accuracies."""
    table, paper = TABLES[name], paper_accuracies()
    return [
        TableEntry(*place, accuracy, None, accuracy, 1)
        for place in planned(table, SETTING, repeats=1)
        for accuracy in [paper[table.paper_name, *place]]
    ]


def test_cells_and_numbers_of_the_papers_tables_match_one_to_one() -> None:
    needed = {
        (table.paper_name, *place)
        for table in TABLES.values()
        for place in planned(table, SETTING, repeats=1)
    }

    assert needed == set(paper_accuracies())
    assert len(needed) == 184


def test_tables_share_identical_cells() -> None:
    first, second = (set(part_named(f"table{i}", Scale.MLP, 1).cells()) for i in (1, 2))

    assert len(first) == 56
    assert len(second) == 36
    assert len(first & second) == 8  # no attack and sign-flipping -2, of 4 nodes, non-i.i.d.


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("scale", Scale)
def test_every_part_plans_cells_with_known_names_at_every_scale(scale: Scale, name: str) -> None:
    cells = part_named(name, scale, 2).cells()

    assert cells
    assert len(set(cells)) == len(cells)
    for cell in cells:
        assert cell.effort > 0
        if cell.__struct_config__.tag == "accuracy":
            assert cell.system in SYSTEMS
            assert cell.threat in THREATS
            assert cell.rule is None or cell.rule in RULES
            assert cell.rounds_judged <= cell.rounds


def test_paper_scale_uses_the_papers_settings() -> None:
    images = SETTINGS[Scale.PAPER, DataKind.IMAGES].learning
    texts = SETTINGS[Scale.PAPER, DataKind.TEXTS].learning

    assert (images.model, images.batch, images.steps) == ("densenet-bc-100", 32, 1000)
    assert images.augmented
    assert (texts.model, texts.batch, texts.steps) == ("bilstm-128", 1024, 500)
    assert texts.sentences is not None
    word2vec = texts.sentences.word2vec
    assert (word2vec.size, word2vec.window, word2vec.iterations) == (300, 7, 32)
    assert SETTINGS[Scale.PAPER, DataKind.IMAGES].multi_krum == "multi_krum_two"


@pytest.mark.parametrize("name", TABLES)
def test_papers_own_numbers_confirm_its_statements(name: str) -> None:
    checked = findings(TABLES[name], papers_own(name))

    assert [finding.statement for finding in checked if not finding.confirmed] == []
    assert len(checked) >= 6
    assert all(finding.confirmed for finding in level(TABLES[name], papers_own(name)))


def test_opposite_numbers_contradict_the_statements() -> None:
    """FedAvg-based systems that resist every attack, and robust ones that collapse."""
    means = [
        replace(e, accuracy=0.9) if e.system in ("fl", "swarm") else replace(e, accuracy=0.2)
        for e in papers_own("table1")
    ]
    calm = [replace(e, accuracy=0.9) if e.setting == "No" else e for e in means]
    refuted = {f.statement for f in findings(TABLES["table1"], calm) if not f.confirmed}

    assert "CIFAR-10: FedAvg-based systems collapse under Gaussian (sigma=1.00)" in refuted
    assert "CIFAR-10: Multi-Krum-based systems hold under Sign-flipping (sigma=-4.0)" in refuted
    assert len(refuted) == 12 + 1  # and the order of i.i.d. and non-i.i.d. data
    assert "CIFAR-10: FedAvg-based systems are at least as good without attack" not in refuted

    one_of_two = [replace(e, accuracy=0.9) if e.system == "fl" else e for e in papers_own("table1")]
    refuted = {f.statement for f in findings(TABLES["table1"], one_of_two) if not f.confirmed}
    assert "CIFAR-noniid: FedAvg-based systems collapse under Gaussian (sigma=1.00)" in refuted
    assert "CIFAR-noniid: FL and SL have similar accuracy" in refuted

    lower = [replace(e, accuracy=e.paper / 2) for e in papers_own("table1")]
    [reached] = level(TABLES["table1"], lower)
    assert reached.confirmed is False
    assert reached.paper == "FL 0.924, DeFL 0.899"

    flat = [replace(e, accuracy=0.8) for e in papers_own("table2")]
    refuted = {f.statement for f in findings(TABLES["table2"], flat) if not f.confirmed}
    assert refuted == {
        f"{n} nodes: FedAvg-based systems fall as the Byzantine rate rises" for n in (4, 7, 10)
    }


def test_columns_are_in_the_papers_order() -> None:
    assert list(SYSTEM_WORDS.values()) == ["FL", "SL", "Biscotti", "DeFL"]
    assert set(SYSTEM_WORDS) < set(SYSTEMS)
    assert set(study.MERGES) >= {None, "fed_avg", "multi_krum", "multi_krum_two"}


def test_no_statement_about_losses_is_confirmed_if_nothing_was_learned() -> None:
    for name in ("table1", "table2"):
        chance = [replace(entry, accuracy=0.1) for entry in papers_own(name)]
        about_losses = [
            finding
            for finding in findings(TABLES[name], chance)
            if re.search("collapse|hold|stable", finding.statement)
        ]

        assert about_losses
        assert not any(finding.confirmed for finding in about_losses)
        assert all("nan %" in finding.numbers for finding in about_losses)


def with_runs(setting: str, system: str, *runs: float) -> list[TableEntry]:
    """The paper's Table 1 on CIFAR-10, measured five times, one number with these runs."""
    return [
        replace(entry, runs=runs if (entry.setting, entry.system) == (setting, system) else steady)
        for entry in papers_own("core")
        for steady in [(entry.accuracy,) * 5]
    ]


@pytest.mark.parametrize(
    ("runs", "confirmed"),
    [
        # Without attack FL has 0.924: it collapses below 0.677.
        ((0.50, 0.51, 0.49, 0.50, 0.50), True),
        ((0.55, 0.80, 0.60, 0.75, 0.62), None),
        ((0.80, 0.81, 0.79, 0.80, 0.80), False),
    ],
)
def test_difference_within_the_uncertainty_of_the_repeats_is_undecided(runs, confirmed) -> None:
    attack = "Sign-flipping (sigma=-2.0)"
    checked = findings(TABLES["core"], with_runs(attack, "fl", *runs))

    [finding] = [f for f in checked if f.statement.endswith(f"collapse under {attack}")]
    assert finding.confirmed is confirmed


def test_papers_numbers_are_judged_with_the_uncertainty_measured_here() -> None:
    """The paper's FL and DeFL differ by 0.004 under label flipping; here that is noise."""
    checked = findings(
        TABLES["core"], with_runs("Label-flipping", "fl", 0.86, 0.92, 0.89, 0.85, 0.93)
    )

    [finding] = [f for f in checked if "Label-flipping" in f.statement]
    assert finding.confirmed is None
    assert finding.paper.endswith("(undecided by the same rule)")


def test_table_with_gaps_judges_the_rows_that_are_measured() -> None:
    whole = papers_own("core")
    without_row = [e for e in whole if (e.setting, e.system) != ("Label-flipping", "defl")]
    without_calm = [e for e in whole if (e.setting, e.system) != ("No", "defl")]

    statements = [f.statement for f in findings(TABLES["core"], without_row)]
    assert not any("Label-flipping" in statement for statement in statements)
    assert len(statements) == len(findings(TABLES["core"], whole)) - 1
    assert findings(TABLES["core"], without_calm) == []


def test_first_screen_counts_what_holds_fails_and_is_undecided() -> None:
    checked = findings(
        TABLES["core"], with_runs("Gaussian (sigma=1.00)", "fl", 0.4, 0.9, 0.5, 0.4, 0.8)
    )
    lines = first_screen({"core": checked, "study": []})

    [averaging] = [line for line in lines if "Averaging (FL, SL) collapses" in line]
    assert "**partly**: 1 of 2 holds, 1 undecided" in averaging
    [robust] = [line for line in lines if "holds under strong attacks" in line]
    assert "| **holds**: 2 of 2 hold |" in robust
    assert not any("memory" in line for line in lines)  # nothing was measured about it


def test_every_claim_of_the_first_screen_has_statements() -> None:
    text = (Path(__file__).parents[3] / "docs" / "RESULTS.md").read_text(encoding="utf-8")

    assert [claim.words for claim in CLAIMS if f"| {claim.words} |" not in text] == []
