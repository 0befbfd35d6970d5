"""`defl data`: which datasets are stored, which are missing, and how nodes would share them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from defl.cli.main import cli
from defl.errors import UserError


def run(*arguments: str, data: str = "") -> Result:
    return CliRunner().invoke(
        cli, ["data", *arguments], catch_exceptions=False, env={"DEFL_DATA": data}
    )


def test_the_list_shows_what_is_stored_and_the_source_of_the_rest(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").touch()

    printed = run("list", data=str(tmp_path)).stdout

    assert f"there    {tmp_path}/cifar-10-python.tar.gz" in printed
    assert "missing  https://cs.stanford.edu" in printed
    assert "missing  https://www.cs.toronto.edu" not in printed


def test_without_a_data_folder_the_list_shows_what_can_be_fetched() -> None:
    printed = run("list").stdout

    assert "missing  https://www.cs.toronto.edu" in printed
    assert "there " not in printed


def test_the_partition_of_the_digits_is_printed_and_plotted(tmp_path: Path) -> None:
    picture = tmp_path / "who.svg"

    shown = run("show", "digits", "--nodes", "5", "--alpha", "1", "--out", str(picture), "--json")

    result = json.loads(shown.stdout)
    assert sum(map(sum, result["nodes"])) == result["train"] == 1437
    assert sum(result["test_counts"]) == result["test"] == 360
    assert len(result["nodes"]) == 5
    assert "<svg" in picture.read_text(encoding="utf-8")
    assert "node 4" in run("show", "digits", "--nodes", "5").stdout


def test_impossible_requests_are_refused_before_any_download() -> None:
    with pytest.raises(UserError, match="no data set 'imagenet'"):
        run("fetch", "mnist", "imagenet")
    with pytest.raises(UserError, match="--data"):
        run("fetch", "mnist")
