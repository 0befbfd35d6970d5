"""Every command: examples that parse, exit codes, --json, and completion."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from defl.cli.main import cli, main
from defl.errors import UserError
from defl.node.setup.local import founding_folder
from support.founding import agree, defl, init_nodes
from test_round_certificate import LAST, Proven, proven  # noqa: F401 - a fixture

Path_ = tuple[str, ...]


def all_commands(command: click.Command, path: Path_ = ()) -> Iterator[tuple[Path_, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from all_commands(below, (*path, name))


ALL = list(all_commands(cli))
NAMES = [" ".join(path) for path, _ in ALL]


def page_of(command: click.Command, path: Path_) -> str:
    return command.get_help(click.Context(command, info_name=" ".join(("defl", *path))))


def examples_of(page: str, path: Path_) -> list[str]:
    """The lines of the help that begin with the command, without trailing comments."""
    start = " ".join(("defl", *path))
    joined = re.sub(r"\\\n\s*", "", page)
    lines = re.findall(rf"^ +({re.escape(start)}(?: .*)?)$", joined, re.MULTILINE)
    return [re.split(r" {2,}| >+ ", line)[0] for line in lines]


@pytest.mark.parametrize(("path", "command"), ALL, ids=NAMES)
def test_the_help_of_a_command_has_an_example_that_parses(
    path: Path_, command: click.Command
) -> None:
    examples = examples_of(page_of(command, path), path)

    assert examples, "no example"
    for line in examples:
        command.make_context(path[-1], shlex.split(line)[1 + len(path) :])


@pytest.mark.parametrize(("path", "command"), ALL, ids=NAMES)
def test_the_help_of_a_command_lists_its_exit_codes_and_explains_every_option(
    path: Path_, command: click.Command
) -> None:
    page = page_of(command, path)

    assert re.search(r"Exit\s+code\s+0:", page), "no exit codes"
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert [option.opts for option in options if not option.help] == []


@pytest.mark.parametrize(("path", "command"), ALL, ids=NAMES)
def test_every_command_has_a_json_option(path: Path_, command: click.Command) -> None:
    options = [name for option in command.params for name in option.opts]

    assert "--json" in options


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    new = tmp_path_factory.mktemp("commands")
    agree(new, init_nodes(new))
    return new


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("node", "card", "alice"), 0),
        (("node", "check", "alice", "--no-peers"), 1),  # the agreed file is missing
        (("federation", "show", "federation.toml"), 0),
        (("completion", "bash"), 0),
        (("data", "list"), 0),
        (("data", "show", "digits"), 0),
        (("new", "project"), 0),
        (("sim", "--rounds", "1"), 0),
        (("clean",), 0),
        (("bench", "rules", "--d", "100", "--rule", "fed_avg", "--repeats", "1", "--no-rivals"), 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_json_is_one_object_on_standard_output(
    folder: Path, arguments: tuple[str, ...], code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "defl.cli.main", *arguments, "--json"],
        capture_output=True, text=True, cwd=folder, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == code, done.stderr
    assert isinstance(json.loads(done.stdout), dict)


def test_verify_and_export_print_one_json_object(
    proven: Proven,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    model, certificate = proven.model(LAST), proven.certificate(LAST)

    verified = defl("verify", model, certificate, proven.federation, "--json")
    exported = defl("export", model, tmp_path / "m.npz", "--json")
    assert (verified.code, verified.json["proven"]) == (0, True)
    assert (exported.code, exported.json["round"]) == (0, str(LAST))


@pytest.mark.parametrize(
    "arguments",
    [
        ("node", "start", "nowhere"),
        ("node", "stop", "nowhere"),
        ("node", "status", "nowhere"),
        ("node", "card", "nowhere"),
        ("federation", "show", "nowhere.toml"),
        ("run", "nowhere"),
        ("export", "nowhere", "model.npz"),
        ("verify", "a", "b", "nowhere.toml"),
        ("demo", "--rounds", "1"),
        ("sim", "--nodes", "1"),
        ("sim", "--seed", "-1"),
        ("sim", "--soak", "nan"),
        ("data", "fetch", "nothing"),
        ("bench", "round", "--nodes", "1"),
    ],
    ids=" ".join,
)
def test_an_impossible_request_exits_with_2_and_advice(
    arguments: tuple[str, ...],
) -> None:
    answer = defl(*arguments)

    assert answer.code == 2
    assert len(answer.text.split()) > 4


def test_an_error_line_shows_control_characters_as_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["defl", "run", "a\x1b[2Ab"])
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)  # as in a terminal

    with pytest.raises(SystemExit):
        main()

    assert capsys.readouterr().err.startswith(r"Error: a\x1b[2Ab: no such folder")


@pytest.mark.parametrize("option", ["--nodes", "--rounds"])
def test_zero_nodes_or_rounds_are_refused_and_leave_no_folder(tmp_path: Path, option: str) -> None:
    assert defl("new", tmp_path / "irises").code == 0

    answer = defl("run", tmp_path / "irises", option, "0", "--out", tmp_path / "out")

    assert answer.code == 2
    assert answer.text.endswith("not 0")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [UserError, KeyboardInterrupt])
def test_a_failed_founding_leaves_an_empty_folder_empty(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def found_federation() -> None:
        with founding_folder(tmp_path, "defl-test-", lambda _: None) as folder:
            (folder / "node-0").mkdir()
            (folder / "node-0" / "node.key").touch()
            (folder / "federation.toml").touch()
            raise error

    with pytest.raises(error):
        found_federation()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_code_is_printed_for_every_shell(shell: str) -> None:
    answer = defl("completion", shell)

    assert answer.code == 0
    assert "_DEFL_COMPLETE" in answer.text


def test_completion_lists_commands_that_are_imported_on_first_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from defl.cli.main import cli; cli.main(prog_name='defl')"],
        env={"_DEFL_COMPLETE": "bash_complete", "COMP_WORDS": "defl fed", "COMP_CWORD": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert "plain,federation" in done.stdout, done.stderr
