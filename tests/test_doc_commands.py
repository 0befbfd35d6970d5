"""Every command line in the documents runs and exits as documented.

The tutorial runs first, from top to bottom. All other lines run in copies of the folder that it
leaves, completed by doc_workspace.py. Lines that would take minutes run with smaller values, given
by the table SMALLER; none is skipped.
"""

import json
import re
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from defl.cli.main import cli
from defl.node.setup.local import free_ports
from support.doc_workspace import LIMIT_S, Shell, add_files, shell_at
from test_docs import DOCUMENTS, ROOT, text

TUTORIAL = ROOT / "docs" / "TUTORIAL.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "console")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ |FAILED +)?((?:[A-Z_]+=\S+ )*defl .*)$")
IN_A_SENTENCE = re.compile(r"`(?:\.venv/bin/)?(defl [^`]+)`")
FLOWER_PROJECT = "tests/flower_projects/message_api"
NOT_A_DEFL_COMMAND = {
    "make": "test_docs.py checks that its targets exist",
    "cp": "run with the tutorial",
    "kill": "run with the tutorial",
    "python3": "installs",
    "source": "installs",
    "mkdir": "the tutorial's folder, which the test creates",
    "tensorboard": "another program, which serves until it is stopped",
    "pip": "installs",
}

# Part of a line -> its replacement: an example for a word in capitals, or smaller numbers, so that
# the line takes seconds.
SMALLER = {
    "propose alice --add": "propose alice --timeout 1 --add",
    "propose alice --replace-key": "propose alice --timeout 1 --replace-key",
    "propose alice --rounds": "propose alice --timeout 1 --rounds",
    "node leave dan": "node leave dan --yes",
    "run PROJECT": "run irises",
    "--flower PATH": f"--flower {FLOWER_PROJECT}",
    "data fetch NAME": "data fetch mnist",
    "--scenario SEED": "--scenario 1",
    "--soak 600": "--soak 1",
    "export NODE": "export alice",
    "defl demo": "defl demo --nodes 4 --rounds 4",
    "run my-project": "run my-project --rounds 1",
    "run irises": "run irises --rounds 1",
    "run digits": "run digits --rounds 1",
    "--nodes 5 --rounds 2 --run-config": "--run-config",
    FLOWER_PROJECT: f"{FLOWER_PROJECT} --rounds 1",
    "--scale paper": "--scale quick",
    "--d 10000000": "--d 1000 --repeats 1",
    "bench round": "bench round --mb 0.1 --rounds 1",
    "--mb 1024 --rounds 2": "--mb 0.1 --rounds 1",
    "run slang": "run slang --rounds 1",
    "robustness --data FOLDER": (
        "robustness --data FOLDER --rounds 1 --rule fed_avg --attack none --members 4"
    ),
    "--dataset digits --seeds 10": "--dataset digits --members 4 --rounds 1",
    "adaptive --first-seed 13 --seeds 10": "adaptive --attack nan --rounds 1",
    "--members 10 --first-seed 23 --seeds 40": "--rounds 1",
    "--first-seed 26 --seeds 10": "--members 4 --rounds 1",
    "--codec int8_masked --seeds 3": "--codec int8_masked --split iid --rounds 1",
}
# Run by small_defl.py: the paper's tables of four nodes with one training step on synthetic data.
SMALL_TABLES = ("defl paper ", "defl data show cifar-10 ", "defl data fetch cifar-10-features ")
# Commands that ask a running node.
ASK_A_NODE = (
    "node status", "node stop", "node leave",
    "federation changes", "federation propose", "federation approve",
)  # fmt: skip
ALONE = (
    "defl federation propose alice --timeout 1 --add eve.join.toml",
    "defl federation propose alice --timeout 1 --add eve.join.toml --weight 5",
    "defl federation propose alice --timeout 1 --replace-key bob.join.toml",
    "defl federation propose alice --timeout 1 --rounds 200",
)
# Line -> its exit code, unless 0.
EXIT_CODES = {
    **dict.fromkeys(ALONE, 1),  # the node that is asked runs alone, so its log records nothing
    "defl federation propose alice --remove dan": 2,  # there are four members
    "defl node leave dan --yes": 2,  # likewise
    "defl federation approve bob 3f9a01": 2,  # nothing is pending
    "defl federation approve bob 3f9a01 --withdraw": 2,  # likewise
    "defl node check alice": 1,  # as the document shows: bob is not running yet
    # The tutorial's file names no relay.
    "defl relay start relay --federation federation.toml": 2,
    "defl verify federation.toml --evidence FILE": 2,  # nobody lies in the tutorial
    # The folder has no stored cells there.
    "defl paper all --scale transfer --stored --out docs/results --report docs/RESULTS.md": 2,
    "defl paper all --scale mlp --stored --out docs/results/mlp": 2,
    "defl run": 2,  # a command named in a sentence, without its argument
}
NEEDS_A_FINISHED_FEDERATION = ("verify", "export")
FROM_A_PROVEN_MODEL = " --from proven.safetensors "


# --- Extracting lines ----------------------------------------------------------------------------


def shell_blocks(document: str) -> list[str]:
    return [block for language, block in FENCE.findall(document) if language in SHELL]


def shown_in(document: str) -> list[str]:
    """Command lines of all fenced blocks, without prompts and comments."""
    commands = []
    for block in shell_blocks(document):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            command = COMMAND.match(line)
            if command is not None:
                commands.append(re.split(r" +#", command[1])[0])
    return commands


def mentioned_in(document: str) -> list[str]:
    """Inline code that begins with `defl`."""
    return [" ".join(line.split()) for line in IN_A_SENTENCE.findall(FENCED.sub("", document))]


def split(line: str) -> tuple[click.Command, list[str], list[str]]:
    """The command, the words of its name and its arguments; an unknown name raises."""
    words = shlex.split(line)
    rest = words[words.index("defl") + 1 :]
    command: click.Command = cli
    path: list[str] = []
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        below = command.get_command(click.Context(command), rest[0])
        assert below is not None, f"no command {rest[0]!r}"
        command, path, rest = below, [*path, rest[0]], rest[1:]
    return command, path, rest


def is_whole(line: str) -> bool:
    """Whether the line can be run; otherwise it only names a command."""
    command, _, arguments = split(line)
    if isinstance(command, click.Group):
        return False
    return bool(arguments) or not any(parameter.required for parameter in command.params)


def smaller(line: str) -> str:
    for part, replacement in SMALLER.items():
        line = line.replace(part, replacement)
    return line


MENTIONED = {line for path in DOCUMENTS for line in mentioned_in(text(path))}
LINES = list(
    dict.fromkeys(
        [
            *(line for path in DOCUMENTS if path != TUTORIAL for line in shown_in(text(path))),
            *(line for line in sorted(MENTIONED) if is_whole(line)),
        ]
    )
)
RUN = list(dict.fromkeys(smaller(line) for line in LINES))


def test_an_unknown_command_in_a_document_is_detected() -> None:
    with pytest.raises(AssertionError, match="no command"):
        split("defl dmo")


def test_command_lines_are_extracted_from_blocks_and_sentences() -> None:
    document = (
        "Try `defl new\nx` or `.venv/bin/defl sim`.\n```\n$ A=1 defl run x  # now\nout\n```\n"
    )

    assert shown_in(document) == ["A=1 defl run x"]
    assert mentioned_in(document) == ["defl new x", "defl sim"]


def test_code_blocks_with_a_prompt_show_known_commands() -> None:
    for path in DOCUMENTS:
        for block in shell_blocks(text(path)):
            for line in re.findall(r"^\$ (?:[A-Z_]+=\S+ )*(\S+)", block, re.MULTILINE):
                assert line == "defl" or line in NOT_A_DEFL_COMMAND, f"{path.name}: {line}"


def test_tables_in_this_file_list_only_documented_commands() -> None:
    for part in (*SMALLER, *SMALL_TABLES):
        assert any(part in line for line in LINES), part
    assert set(EXIT_CODES) <= set(RUN)


# --- The tutorial, from top to bottom ------------------------------------------------------------

# Enough for a node to be killed and restarted before the last round closes.
ROUNDS = 20


@dataclass(frozen=True)
class Workspaces:
    shell: Shell
    founded: Path  # before the first node was started
    finished: Path  # after the tutorial's last line


def tutorial_lines() -> list[str]:
    """The lines after the installation, with free ports and fewer rounds."""
    document = text(TUTORIAL).partition("## 2.")[2].replace("--rounds 200", f"--rounds {ROUNDS}")
    for number, port in enumerate(free_ports(4), 7401):
        document = document.replace(f"127.0.0.1:{number}", f"127.0.0.1:{port}")
    blocks = shell_blocks(document)
    return [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]


def await_round(round_: int, node: str, shell: Shell, folder: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        status = shell.run(f"defl node status {node} --json", folder)
        if status.returncode == 0 and json.loads(status.stdout)["round"] >= round_:
            return
        time.sleep(0.1)
    raise AssertionError(f"{node} did not close round {round_}")


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Workspaces:
    shell = shell_at(tmp_path_factory.mktemp("home"))
    places = tmp_path_factory.mktemp("workspaces")
    folder, founded = places / "finished", places / "founded"
    folder.mkdir()
    terminals: list[subprocess.Popen[str]] = []
    try:
        for line in tutorial_lines():
            if " node start " in line:
                if not terminals:
                    shutil.copytree(folder, founded)
                terminals.append(shell.start(line, folder))
                continue
            if " verify " in line:  # the nodes exit by themselves after the last round
                codes = [terminal.wait(LIMIT_S) for terminal in terminals]
                assert codes == [0, -signal.SIGKILL, 0, 0, 0]
            if line.startswith("kill "):
                await_round(1, "bob", shell, folder)
            done = shell.run(line, folder)
            starting = " node status " in line  # it may not answer yet, or no longer
            assert done.returncode == 0 or starting, f"{line}\n{done.stdout}{done.stderr}"
    finally:
        for terminal in terminals:
            if terminal.poll() is None:
                terminal.kill()
                terminal.wait()
    for place in (founded, folder):
        add_files(place, shell)
    return Workspaces(shell, founded, folder)


def test_the_tutorial_ends_with_an_exported_and_proven_model(workspaces: Workspaces) -> None:
    assert (workspaces.finished / "irises.npz").stat().st_size > 0
    assert (workspaces.finished / "alice" / "round-certificate.json").exists()


# --- Every other line ----------------------------------------------------------------------------


def remove_outputs(folder: Path, line: str) -> None:
    """Removes files that the line is to create."""
    for part in line.split("&&"):
        _, path, rest = split(part)
        match path:
            case ["new"] | ["node", "init"] | ["relay", "init"]:
                shutil.rmtree(folder / rest[0], ignore_errors=True)
            case ["federation", "create"] if "new/" not in part:
                (folder / "federation.toml").unlink()
                (folder / "initial.safetensors").unlink(missing_ok=True)
            case ["export"]:
                (folder / rest[1]).unlink(missing_ok=True)


@pytest.mark.parametrize("line", RUN, ids=RUN)
def test_command_lines_in_documents_exit_as_documented(
    line: str, workspaces: Workspaces, tmp_path: Path
) -> None:
    name = " ".join(split(line.partition("&&")[0])[1])
    finished = name in NEEDS_A_FINISHED_FEDERATION or FROM_A_PROVEN_MODEL in line
    folder = tmp_path / "workspace"
    shutil.copytree(workspaces.finished if finished else workspaces.founded, folder, symlinks=True)
    remove_outputs(folder, line)

    if name == "node start":
        with workspaces.shell.running(line, folder) as node:
            assert node.poll() is None
            node.send_signal(signal.SIGINT)
        return
    small = line.startswith(SMALL_TABLES)
    if name in ASK_A_NODE:
        asked = split(line)[2][0]
        with workspaces.shell.running(f"defl node start {asked}", folder) as node:
            done = workspaces.shell.run(line, folder)
            if name != "node stop":
                node.send_signal(signal.SIGINT)
    elif name == "dashboard":
        done = workspaces.shell.serve(line, folder)
    else:
        done = workspaces.shell.run(line, folder, small=small)

    assert done.returncode == EXIT_CODES.get(line, 0), f"{done.stdout}{done.stderr}"
