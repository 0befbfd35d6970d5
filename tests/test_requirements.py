"""The requirements of a federation, the theorem that covers it, and how both are shown."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from defl.aggregation.aggregate import AggregationResult
from defl.aggregation.fed_avg import fed_avg
from defl.aggregation.rules import RULES
from defl.committee import DEFAULTS, Charter, Federation, Membership
from defl.errors import PreconditionBroken
from defl.node.setup.agreement import Agreement, read_federation
from defl.node.setup.requirements import coverage, requirements_of
from support.founding import agree, cards_in, create, defl, init_nodes, weights_file


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("founded")
    init_nodes(folder)
    return folder


def test_a_federation_is_shown_with_its_fingerprint_quorums_and_costs(
    founded: Path, tmp_path: Path
) -> None:
    agreement = agree(tmp_path, cards_in(founded), "--aggregation", "multi_krum")

    shown = defl("federation", "show", tmp_path / "federation.toml").text
    facts = defl("federation", "show", tmp_path / "federation.toml", "--json").json

    assert (facts["n"], facts["f"], facts["quorum"]) == (4, 1, 3)
    assert facts["id"] == agreement.federation.chain.hex()
    assert facts["fingerprint"] in shown
    assert all(f"127.0.0.1:740{i}" in shown for i in (1, 2, 3, 4))
    assert "quorum q = 3 of 4" in shown
    for words in (
        "disk",
        "memory",
        "traffic",
        "n >= 3f + 1",
        "2 faults_max + 3",
        "3 faults_max + 3",
    ):
        assert words in shown


@pytest.mark.parametrize(
    ("values", "codec", "recommended"),
    [(1_100_000, "fp32", True), (1_000_000, "fp32", False), (1_100_000, "int8", False)],
)
def test_int8_is_recommended_where_a_round_takes_a_second_of_a_slow_link(
    founded: Path, tmp_path: Path, values: int, codec: str, recommended: bool
) -> None:
    model = ("--model", weights_file(tmp_path, values))
    created = create(tmp_path, cards_in(founded), *model, "--codec", codec)
    shown = defl("federation", "show", tmp_path / "federation.toml").text

    assert created.code == 0
    assert ("--codec int8: for links below 100 Mbit/s" in shown) == recommended


def facts_of(agreement: Agreement, members: int, **facts: Any) -> Federation:
    """The same federation with more members."""
    base = agreement.federation
    card = agreement.cards[0]
    chosen = tuple(
        type(base.members[0])(f"{card.name}-{i}", bytes([i]) * 32) for i in range(members)
    )
    charter = Charter(base.schema, base.initial, **facts)
    return Federation(charter, Membership(rounds=1, members=chosen))


@pytest.mark.parametrize(
    ("members", "faults_max", "krum", "defl_proof", "at_fewest_rows"),
    [
        (4, 1, False, False, False),
        (4, 0, True, True, True),
        (5, 1, True, False, False),
        (6, 1, True, True, False),
        (7, 1, True, True, False),
        (9, 1, True, True, True),
        (10, 3, True, False, False),
        (12, 3, True, True, False),
    ],
)
def test_which_proof_covers_a_federation_follows_from_its_numbers(
    founded: Path,
    tmp_path: Path,
    members: int,
    faults_max: int,
    krum: bool,
    defl_proof: bool,
    at_fewest_rows: bool,
) -> None:
    agreement = agree(tmp_path, cards_in(founded))
    facts = facts_of(agreement, members, faults_max=faults_max, aggregation="multi_krum")

    holds = {check.name.split()[0]: check.holds for check in coverage(facts)}
    theorem = [check.holds for check in coverage(facts) if "theorem at m" in check.name]

    assert holds["consensus,"]
    assert (holds["Krum's"], holds["DeFL's"]) == (krum, defl_proof)
    assert theorem == [at_fewest_rows]


@pytest.mark.parametrize("rule", [*RULES])
def test_every_rule_is_either_accepted_and_shown_or_refused_with_a_reason(
    founded: Path, tmp_path: Path, rule: str
) -> None:
    result = create(tmp_path, cards_in(founded), "--aggregation", rule)

    assert f"{rule} can be computed at m = n - f = 3: " in result.text
    if result.code == 0:
        assert read_federation(tmp_path / "federation.toml").federation.aggregation == rule
    else:
        assert result.code == 2
        assert result.text.endswith("add members or lower faults_max")


def test_strict_accepts_what_a_theorem_covers(founded: Path, tmp_path: Path) -> None:
    result = create(tmp_path, cards_in(founded), "--strict", "--aggregation", "coordinate_median")

    assert result.code == 0, result.text
    assert "NO " not in result.text


def test_a_rule_that_cannot_run_on_the_fewest_rows_is_refused(
    founded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule must run on m = n - f updates, since that many may close a round."""

    def picky(
        rows: Any, base: Any, faults_max: int, ties: Any, **_options: Any
    ) -> AggregationResult:
        if len(rows) < 4:
            raise PreconditionBroken(f"needs 4 rows, not {len(rows)}")
        return fed_avg(rows, base, faults_max, ties)

    monkeypatch.setitem(
        RULES, DEFAULTS.aggregation, replace(RULES[DEFAULTS.aggregation], function=picky)
    )

    result = create(tmp_path, cards_in(founded))

    assert result.code == 2
    assert "at m = n - f = 3: needs 4 rows, not 3; add members or lower faults_max" in result.text
    assert not (tmp_path / "federation.toml").exists()


def test_the_plain_mean_is_covered_only_without_faults(founded: Path, tmp_path: Path) -> None:
    agreement = agree(tmp_path, cards_in(founded))

    for faults_max, covered in ((0, True), (1, False)):
        checks = coverage(facts_of(agreement, 7, faults_max=faults_max, aggregation="fed_avg"))
        assert {c.holds for c in checks if c.name.startswith("fed_avg's theorem")} == {covered}


def test_requirements_grow_with_members_and_kept_rounds(founded: Path, tmp_path: Path) -> None:
    agreement = agree(tmp_path, cards_in(founded))
    small, wide, long = (
        requirements_of(facts_of(agreement, n, tau=tau)) for n, tau in ((4, 2), (8, 2), (4, 4))
    )

    assert small.update_bytes == small.model_bytes == (model := 4 * (64 + 100 + 64))
    assert wide.disk_bytes - small.disk_bytes == 4 * 5 * model
    assert long.disk_bytes - small.disk_bytes == 2 * (4 * model + model)
    assert wide.sent_bytes_per_round > 2 * small.sent_bytes_per_round
