"""The command lines in the documents: every one is understood, and the tutorial is run.

A line that is not run here is one of a command below, with the reason; its options are checked by
parsing all the same.
"""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import click
import pytest

from defl.cli.main import cli
from defl.node.local import free_ports
from test_docs import DOCUMENTS, ROOT, form_of, text

LIMIT_S = 180.0
BASH = shutil.which("bash") or "bash"
TUTORIAL = ROOT / "docs" / "TUTORIAL.md"
FENCE = re.compile(r"^```(?:sh|console)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?((?:[A-Z_]+=\S+ )*defl .*)$")
NOT_A_DEFL_COMMAND = {
    "make": "test_docs.py sees that its targets exist",
    "cp": "run with the tutorial",
    "tensorboard": "another program's",
    "pip": "installs",
    "pytest": "a project's own",
    "torchrun": "another program's",
    "export": "a shell's own",
    "cd": "a shell's own",
}

# Command -> why its lines are parsed and not run here.
NOT_RUN = {
    "sim": "run by test_docs.py, output and all",
    "demo": "run by test_demo.py",
    "run": "run by test_node.py and the tests of clients and Flower",
    "new": "run in the tutorial and by the tests of templates",
    "bench": "takes minutes; its parts are run by test_bench.py",
    "paper": "takes minutes and data; its parts are run by tests/paper",
    "data": "needs data sets that are not everywhere; run by their own tests",
    "node": "as a whole in the tutorial; the addresses of other documents are nobody's",
    "federation": "as a whole in the tutorial",
    "verify": "in the tutorial",
    "export": "in the tutorial and by test_export.py",
    "completion": "run by test_commands.py",
}


def lines_of(document: str) -> list[str]:
    """Command lines of all fenced blocks, without prompts and remarks."""
    found = []
    for block in FENCE.findall(document):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            command = COMMAND.match(line)
            if command is not None:
                found += [part.strip() for part in re.split(r" #|&&", command[1]) if "defl" in part]
    return found


ALL = [(path.name, line) for path in DOCUMENTS for line in lines_of(text(path))]


def parsed(line: str) -> list[str]:
    """The words after `defl`; wrong options and missing arguments raise."""
    words = shlex.split(line)
    words = words[words.index("defl") + 1 :]
    command: click.Command = cli
    rest = list(words)
    while isinstance(command, click.Group):
        below = command.get_command(click.Context(command), rest[0])
        assert below is not None, f"no command {rest[0]!r}"
        command, rest = below, rest[1:]
    command.make_context(words[0], rest)
    return words


@pytest.mark.parametrize(("document", "line"), ALL, ids=[f"{d}: {line}" for d, line in ALL])
def test_a_command_line_in_a_document_is_understood(document: str, line: str) -> None:
    words = parsed(line)

    assert document == TUTORIAL.name or words[0] in NOT_RUN, f"run it, or say why not: {line}"


def test_a_wrong_option_in_a_document_would_be_seen() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed("defl demo --colour red")
    with pytest.raises(AssertionError, match="no command"):
        parsed("defl dmo")


def test_every_block_that_shows_a_prompt_shows_commands_that_are_known() -> None:
    for path in DOCUMENTS:
        for block in FENCE.findall(text(path)):
            for line in re.findall(r"^\$ (?:[A-Z_]+=\S+ )*(\S+)", block, re.MULTILINE):
                assert line == "defl" or line in NOT_A_DEFL_COMMAND, f"{path.name}: {line}"


# --- The tutorial, from top to bottom ------------------------------------------------------------


def tutorial_lines() -> list[str]:
    """With ports that nobody uses: its own may be taken on this machine."""
    document = text(TUTORIAL)
    for number, port in enumerate(free_ports(4), 7401):
        document = document.replace(f"127.0.0.1:{number}", f"127.0.0.1:{port}")
    blocks = FENCE.findall(document)
    return [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A `defl` in the path that is this one."""
    place = tmp_path / "bin"
    place.mkdir()
    script = place / "defl"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m defl.cli.main "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}


def test_the_tutorial_leads_to_an_exported_and_proven_model(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = tmp_path / "four"
    folder.mkdir()
    terminals: list[subprocess.Popen[bytes]] = []
    try:
        for line in tutorial_lines():
            if " node start " in line:
                terminals.append(
                    subprocess.Popen(
                        [BASH, "-c", f"exec env {line}"],
                        cwd=folder,
                        env=environment,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )
                continue
            if " verify " in line:  # the nodes end by themselves when all rounds have closed
                assert [terminal.wait(LIMIT_S) for terminal in terminals] == [0, 0, 0, 0]
            done = subprocess.run(
                [BASH, "-c", line], cwd=folder, env=environment,
                capture_output=True, text=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
            starting = " node status " in line  # it may not answer yet, or any more
            assert done.returncode == 0 or starting, f"{line}\n{done.stdout}{done.stderr}"
    finally:
        for terminal in terminals:
            if terminal.poll() is None:
                terminal.kill()
                terminal.wait()

    assert len(terminals) == 4
    assert (folder / "irises.npz").stat().st_size > 0


# --- The README's first screen -------------------------------------------------------------------


def test_the_readme_shows_what_the_demonstration_prints() -> None:
    shown = re.search(r"^\$ defl demo\n(.*?)^```$", text(ROOT / "README.md"), re.M | re.S)
    assert shown is not None
    source = text(ROOT / "src/defl/cli/demo.py") + text(ROOT / "src/defl/cli/demo_view.py")
    heads = [line.split()[0] for line in form_of(shown[1]) if re.match(r"^[a-z]+ ", line)]

    assert heads == ["accuracy", "rounds", "model", "left", "commit", "per", "took"]
    for phrase in ("a server's loop in this process", "honest nodes", "nobody attacks"):
        assert phrase in shown[1]
        assert phrase in source
