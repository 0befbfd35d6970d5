"""docs/CLIENTS.md: every client shown follows the protocol and trains."""

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from defl.cli.new import TEMPLATES
from defl.clients.protocol import Training, initial_row, roles_of, schema_of
from defl.ids import Round
from defl.schema import Role

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "CLIENTS.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_every_client_on_the_page_trains(code: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(code, "docs/CLIENTS.md", "exec"), names)  # noqa: S102 - our own page
    client = names["client"]() if isinstance(names["client"], type) else names["client"]
    schema = schema_of(client.initial_weights(), roles_of(client))
    training = Training(client, schema)
    row = initial_row(client, schema)

    trained, _ = training.train(row, Round(1))

    assert not np.array_equal(trained, row)
    training.evaluate(trained)


def test_the_page_lists_every_role_template_and_ready_made_client() -> None:
    ready_made = {"FunctionClient", "SklearnClient", "supervised", "TorchClient", "TorchrunClient"}

    assert len(BLOCKS) >= 6
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)[: len(Role)] == list(Role)
    assert {"numpy", *re.findall(r"--template (\w+)", PAGE)} == set(TEMPLATES)
    assert ready_made <= set(re.findall(r"`defl\.clients\.\w+\.(\w+)", PAGE))


def statements(code: str) -> set[str]:
    """Imports, results and calls, without docstrings, type hints and comments."""
    return {
        ast.unparse(node)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom | ast.Return)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    }


def test_the_torchrun_client_on_the_page_matches_the_example() -> None:
    example = (ROOT / "examples" / "torchrun" / "client.py").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (shown,) = [block for block in blocks if "TorchrunClient" in block]

    assert statements(shown) == statements(example)
