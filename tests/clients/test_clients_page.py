"""docs/CLIENTS.md: every client shown follows the protocol and trains."""

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
    assert len(BLOCKS) >= 6
    for role in Role:
        assert f"| `{role}` |" in PAGE
    for template in TEMPLATES:
        assert template in PAGE.lower()
    for name in ("FunctionClient", "SklearnClient", "supervised", "TorchClient", "TorchrunClient"):
        assert name in PAGE


def test_the_torchrun_client_on_the_page_matches_the_example() -> None:
    example = (ROOT / "examples" / "torchrun" / "client.py").read_text(encoding="utf-8")
    for line in ("return TorchrunClient(__file__, processes=2)", "serve(make_client)"):
        assert line in PAGE
        assert line in example
