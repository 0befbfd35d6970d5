"""The public names of `defl`, and how little `import defl` and `defl --help` load."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import click
import pytest

import defl
from defl.cli.main import COMMANDS, cli

PUBLIC = [
    "Attendance", "Client", "Conditions", "DeflError", "History", "LineageProof", "LocalFault",
    "MemberTraffic", "ModelProof", "Omission", "OmissionReason", "Result", "RoundRecord",
    "RunFailed", "RunInterrupted", "RunProgress", "Simulation", "Timing", "UserError",
    "WeightsError", "WorkerFailed", "load_model", "run", "simulate", "verify", "verify_lineage",
]  # fmt: skip

# Slow or optional: neither `import defl` nor `defl --help` loads any of them.
HEAVY = ("numpy", "torch", "sklearn", "flwr", "matplotlib", "numba", "msgspec", "safetensors")
DEFL_MODULES_MAX = 6  # defl, defl.cli, main, exit_codes, errors, printable


def modules_after(code: str) -> set[str]:
    """Names of all modules that a new interpreter has loaded after running the code."""
    script = f"{code}\nimport json, sys\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(done.stderr))


def test_the_public_names_are_pinned() -> None:
    assert defl.__all__ == PUBLIC
    assert [name for name in dir(defl) if not name.startswith("_")] == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented_typed_and_defined_in_the_package(name: str) -> None:
    value = getattr(defl, name)

    assert value.__doc__
    assert value.__module__.startswith("defl.")
    if callable(value) and not isinstance(value, type):
        assert "return" in get_type_hints(value)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'defl' has no attribute 'simulat'"):
        defl.simulat  # noqa: B018 - the access is what is tested


def test_no_submodule_hides_a_public_name() -> None:
    """Importing a submodule sets an attribute of the package, which would replace the function."""
    folder = os.path.dirname(defl.__file__)
    submodules = {name.removesuffix(".py") for name in os.listdir(folder)}

    assert not submodules & set(PUBLIC)


def test_import_defl_loads_one_module_of_its_own_and_no_framework() -> None:
    loaded = modules_after("import defl")

    assert {name for name in loaded if name.split(".")[0] == "defl"} == {"defl"}
    assert not {name.split(".")[0] for name in loaded} & set(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_imports_no_command(arguments: list[str]) -> None:
    loaded = modules_after(
        f"from defl.cli.main import cli\ncli.main({arguments}, standalone_mode=False)"
    )

    own = {name for name in loaded if name.split(".")[0] == "defl"}
    assert len(own) <= DEFL_MODULES_MAX, own
    assert not {name.split(".")[0] for name in loaded} & set(HEAVY)


def test_importing_the_clients_does_not_change_the_environment() -> None:
    code = "import os\nbefore = dict(os.environ)\nimport defl.clients.protocol\n"
    modules_after(f"{code}assert dict(os.environ) == before")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_matches_the_commands_own_help(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    assert command.get_short_help_str(limit=200) == COMMANDS[name].short_help


def test_commands_are_completed_without_importing_them() -> None:
    context = click.Context(cli)

    items = {item.value: item.help for item in cli.shell_complete(context, "ver")}

    assert items == {"verify": COMMANDS["verify"].short_help}


def test_the_readme_uses_only_public_names() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")
        assert set(re.findall(r"\bdefl\.(\w+)", block)) <= set(defl.__all__)


def test_founding_a_federation_loads_no_node() -> None:
    """Each of these modules would delay every `defl run`."""
    first_weights = modules_after("import defl.node.work.first_weights")
    run = modules_after("import defl.cli.run")

    assert not first_weights & {"asyncio", "defl.committee", "defl.aggregation.rules"}
    assert not run & {"asyncio", "sqlite3", "defl.participant", "defl.node.work.worker_process"}
