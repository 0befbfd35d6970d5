"""docs/API.md documents every public name, and its examples run from top to bottom."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import defl

PAGE = (Path(__file__).parent.parent / "docs" / "API.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^(?=## )", PAGE, flags=re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Sections that need real processes, or read the files that these leave.
OF_RUNS = (
    "## defl.run\n",
    "## defl.load_model\n",
    "## defl.verify\n",
    "## defl.verify_lineage\n",
)


def execute(sections: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for section in sections:
        for code in BLOCK.findall(section):
            exec(compile(code, "docs/API.md", "exec"), names)  # noqa: S102 - our own page
    return names


def test_the_page_shows_every_public_name_in_an_example() -> None:
    code = "\n".join(BLOCK.findall(PAGE))

    assert [name for name in defl.__all__ if not re.search(rf"\bdefl\.{name}\b", code)] == []


def test_the_page_names_nothing_that_is_not_public() -> None:
    named = set(re.findall(r"\bdefl\.([A-Za-z_]+)\b(?!\.)", "\n".join(BLOCK.findall(PAGE))))

    assert named <= set(defl.__all__)


def test_simulation_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)

    names = execute([section for section in SECTIONS if not section.startswith(OF_RUNS)])

    assert names["history"].agreed
    assert abs(names["slope"] - 3) < 0.3
    assert (tmp_path / "history.png").exists()
    printed = capsys.readouterr().out
    assert "node-6 (left out by the rule)" in printed
    assert "clients[6] has a different model than clients[0]" in printed


@pytest.mark.slow
def test_run_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = "import defl\n"

    names = execute([f"```python\n{first}```", *(s for s in SECTIONS if s.startswith(OF_RUNS))])

    assert names["result"].complete
    assert names["proof"].proven
    assert names["attacked"].attendance[3].taken_part == 0, "left out, or late under load"


OTHER_PLACES = re.findall(r"`(defl\.[a-z_.]+)\.([A-Za-z]+)`", PAGE.partition("## Other places")[2])


@pytest.mark.parametrize(("module", "name"), OTHER_PLACES)
def test_every_other_place_named_on_the_page_exists(module: str, name: str) -> None:
    if "torch" in module:
        pytest.importorskip("torch")
    if "sklearn" in module:
        pytest.importorskip("sklearn")

    assert hasattr(importlib.import_module(module), name)


def test_the_page_names_all_ready_made_clients() -> None:
    assert {name for _, name in OTHER_PLACES if name.endswith("Client")} == {
        "FunctionClient", "TorchClient", "TorchrunClient", "SklearnClient"
    }  # fmt: skip
