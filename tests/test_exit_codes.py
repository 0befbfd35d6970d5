"""Exit codes agree between the commands, their help and OPERATING.md."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from defl import errors
from defl.cli.exit_codes import MEANINGS, ExitCode, exit_code
from defl.errors import BrokenLineage, ChunkRotten, DeflError
from defl.node.store.records import DATABASE
from test_first_start import alice, opened  # noqa: F401 - alice is a fixture

OPERATING = Path(__file__).parent.parent / "docs" / "OPERATING.md"
FAULTS_OF_THIS_MACHINE = {
    "LocalFault",
    "Exhausted",
    "DiskFull",
    "NoDescriptors",
    "ChunkRotten",
    "SigningRefused",
    "WorkerFailed",
}
DETAILS: dict[type, tuple[object, ...]] = {ChunkRotten: (b"blob", 0), BrokenLineage: (3, "why")}


def test_operating_page_and_commands_agree_on_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", OPERATING.read_text(encoding="utf-8"), re.MULTILINE)

    assert rows == [(str(code.value), meaning) for code, meaning in MEANINGS.items()]
    assert set(MEANINGS) == set(ExitCode)


@pytest.mark.parametrize("kind", [k for k in vars(errors).values() if isinstance(k, type)])
def test_only_local_faults_exit_with_the_failure_code(
    kind: type[DeflError],
) -> None:
    expected = ExitCode.FAILED if kind.__name__ in FAULTS_OF_THIS_MACHINE else ExitCode.REFUSED

    assert exit_code(kind(*DETAILS.get(kind, ("why",)))) is expected


def start(folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "defl.cli.main", "node", "start", str(folder)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_start_with_damaged_state_exits_with_the_documented_code(
    alice: Path,  # noqa: F811 - the fixture
) -> None:
    opened(alice)
    (alice / "state" / DATABASE).write_bytes(b"rubbish" * 1000)

    damaged = start(alice)
    (alice / "state" / DATABASE).unlink()
    lost = start(alice)

    assert (damaged.returncode, lost.returncode) == (ExitCode.FAILED, ExitCode.REFUSED)
    assert damaged.stderr.startswith("Error: ")
    assert "--observer" in damaged.stderr
