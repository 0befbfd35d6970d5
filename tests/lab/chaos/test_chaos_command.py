"""`make chaos` without root or tools: it says what is missing, and skips."""

import os
import shutil

import pytest
from click.testing import CliRunner

from defl.lab.chaos import requirements
from defl.lab.chaos.__main__ import CONDITIONS, FIGURES, NAMES, main


def test_without_root_it_skips_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    result = CliRunner().invoke(main, [])

    assert result.exit_code == 0
    assert result.output == "skipped: it makes network namespaces, which needs root\n"


def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)

    reason = requirements.missing_tool(("nft",))

    assert reason is not None
    assert "nft is missing (Debian's package nftables" in reason
    assert requirements.missing_tool(()) is None


def test_every_tool_that_a_condition_needs_has_a_package() -> None:
    needed = {tool for condition in CONDITIONS.values() for tool in condition.tools}

    assert needed <= set(requirements.PACKAGES)


def test_names_are_listed_and_unknown_ones_refused() -> None:
    listed = CliRunner().invoke(main, ["--list"])
    refused = CliRunner().invoke(main, ["--only", "earthquake"])

    assert [line.split()[0] for line in listed.output.splitlines()] == NAMES
    assert not set(CONDITIONS) & set(FIGURES)
    assert refused.exit_code == 2
    assert "earthquake" in refused.output
