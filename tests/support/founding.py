"""For tests of the command line: four members' folders and their federation.toml.

The commands themselves create both.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from defl.cli.exit_codes import exit_code
from defl.cli.main import cli
from defl.errors import DeflError
from defl.node.setup.agreement import Agreement, read_federation

NAMES = ("alice", "bob", "carol", "dan")


@dataclass(frozen=True)
class CommandResult:
    code: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def defl(*arguments: object) -> CommandResult:
    """Run a `defl` command in this process."""
    result: Result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if isinstance(result.exception, DeflError):
        return CommandResult(exit_code(result.exception), str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return CommandResult(result.exit_code, result.output)


def init_nodes(folder: Path, ports: tuple[int, ...] = (7401, 7402, 7403, 7404)) -> list[Path]:
    """Create the members' nodes; returns the paths of their cards."""
    cards = []
    for name, port in zip(NAMES, ports, strict=True):
        result = defl(
            "node",
            "init",
            folder / name,
            "--name",
            name,
            "--address",
            f"127.0.0.1:{port}",
            "--json",
        )
        assert result.code == 0, result.text
        cards.append(Path(result.json["card"]))
    return cards


def weights_file(folder: Path, values: int = 64) -> Path:
    path = folder / "start.npz"
    np.savez(path, point=np.zeros(values, dtype=np.float32))
    return path


def agree(folder: Path, cards: list[Path], *options: object) -> Agreement:
    path = folder / "federation.toml"
    model = weights_file(folder)
    result = defl("federation", "create", *cards, "--model", model, "-o", path, *options)
    assert result.code == 0, result.text
    return read_federation(path)


def cards_in(folder: Path) -> list[Path]:
    return [folder / name / f"{name}.card.toml" for name in NAMES]


def create(folder: Path, cards: list[Path], *options: object) -> CommandResult:
    """Run `federation create`, with weights from a file unless the options name a model."""
    model = () if "--model" in options else ("--model", weights_file(folder))
    return defl("federation", "create", *cards, *model, "-o", folder / "federation.toml", *options)
