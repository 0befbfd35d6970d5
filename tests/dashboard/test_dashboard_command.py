"""`defl dashboard` and `--dashboard`: processes that can be ended at any time, and clear errors."""

import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from defl.cli import dashboard as command
from defl.cli.dashboard_beside import dashboard_beside
from defl.errors import UserError
from support.founding import agree, defl, init_nodes
from test_running import CLIENT, output_until, start

LIMIT_S = 60.0
TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of tests


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four nodes that have never run."""
    folder = tmp_path_factory.mktemp("founded")
    agree(folder, init_nodes(folder))
    for name in ("alice", "bob", "carol", "dan"):
        for file in ("federation.toml", "initial.safetensors"):
            (folder / name / file).write_bytes((folder / file).read_bytes())
    return folder


@contextmanager
def serving(*arguments: object) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The command, and the address that it printed."""
    words = [str(argument) for argument in arguments]
    process = start("-m", "defl.cli.main", "dashboard", *words, "--json")
    try:
        yield process, json.loads(output_until(process, "\n"))["address"]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Browser:
    """Opens the printed address and keeps the cookie."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        self.host, self.port = parts.hostname, parts.port
        self.cookie = ""
        status, headers, _ = self._ask(f"/?{parts.query}")
        assert (status, headers["Location"]) == (303, "/")
        self.cookie = headers["Set-Cookie"].partition(";")[0]

    def _ask(self, path: str) -> tuple[int, HTTPMessage, bytes]:
        connection = HTTPConnection(self.host, self.port, timeout=LIMIT_S)
        try:
            connection.request("GET", path, headers={"Cookie": self.cookie})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> bytes:
        status, _, body = self._ask(path)
        assert status == 200, (path, status, body)
        return body

    def json(self, path: str) -> "dict[str, object]":
        decoded: dict[str, object] = json.loads(self.get(path))
        return decoded


# --- Alone ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_shows_a_node_that_never_ran_and_ends_with_0(
    founded: Path, number: signal.Signals
) -> None:
    with serving(founded / "alice", "--port", 0) as (process, address):
        browser = Browser(address)
        assert browser.get("/").startswith(b"<!doctype html>")
        assert browser.json("/api/overview")["whole"] is False
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)

    assert process.returncode == 0


@pytest.mark.slow
def test_a_folder_of_nodes_is_shown_whole_and_each_start_has_another_token(founded: Path) -> None:
    with serving(founded, "--port", 0) as (_, first), serving(founded, "--port", 0) as (_, second):
        assert Browser(first).json("/api/overview")["whole"] is True
        assert urlsplit(first).query != urlsplit(second).query


@pytest.mark.slow
def test_with_a_token_file_the_cookie_outlives_a_restart(founded: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(f"{TOKEN}\n", encoding="ascii")
    with serving(founded / "alice", "--port", 0, "--token-file", token) as (_, address):
        browser = Browser(address)
    with serving(founded / "alice", "--port", browser.port, "--token-file", token) as (_, again):
        assert again == address
        browser.get("/api/overview")


@pytest.mark.slow
def test_with_an_address_file_the_token_is_in_that_file_alone(
    founded: Path, tmp_path: Path
) -> None:
    file = tmp_path / "address"
    file.symlink_to(tmp_path / "thesis")  # not followed
    options = ("--port", 0, "--address-file", file)
    with serving(founded / "alice", *options) as (process, shown):
        address = file.read_text(encoding="ascii").strip()
        assert stat.S_IMODE(file.lstat().st_mode) == 0o600
        Browser(address)
        assert (urlsplit(shown).port, urlsplit(shown).query) == (urlsplit(address).port, "")
        assert process.stdout is not None
        rest = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest += process.communicate(timeout=LIMIT_S)[0]

    assert urlsplit(address).query.removeprefix("token=") not in rest
    assert str(file) in rest
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("journal", [True, False], ids=["journal", "another file"])
def test_the_token_is_not_written_to_the_journal(
    founded: Path, tmp_path: Path, journal: bool
) -> None:
    output = tmp_path / "output"
    with output.open("wb") as stream:
        state = os.fstat(stream.fileno())
        inode = state.st_ino if journal else state.st_ino + 1
        process = subprocess.Popen(
            [sys.executable, "-m", "defl.cli.main", "dashboard", founded / "alice", "--port", "0"],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "JOURNAL_STREAM": f"{state.st_dev}:{inode}"},
        )
    try:
        while "Ctrl-C" not in output.read_text(encoding="utf-8"):
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()

    printed = output.read_text(encoding="utf-8")
    assert ("token=" in printed) is not journal
    assert ("--address-file FILE" in printed) is journal


def test_an_address_file_that_cannot_be_written_is_refused(founded: Path, tmp_path: Path) -> None:
    file = tmp_path / "missing" / "address"

    with (
        pytest.raises(UserError, match="cannot be written: No such file"),
        command._written(file, "http://127.0.0.1/"),
    ):
        pass


# --- Errors --------------------------------------------------------------------------------------


def refused(*arguments: object) -> str:
    answer = defl("dashboard", *arguments)
    assert answer.code == 2
    return answer.text


def test_folders_without_a_node_are_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert "no such folder" in refused(tmp_path / "nowhere")
    assert "not a folder" in refused(tmp_path / "file")
    assert "defl node init" in refused(tmp_path)


def test_another_machines_address_is_refused(founded: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a" * 32)
    (tmp_path / "token").chmod(0o600)
    elsewhere = ("--listen", "192.0.2.1", "--token-file", tmp_path / "token")

    assert "--listen 192.0.2.1 is not an address of this machine" in refused(
        founded / "alice", *elsewhere
    )


def test_a_taken_port_is_an_error_if_it_was_asked_for(founded: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert "is taken" in refused(founded / "alice", "--port", other.getsockname()[1])


def test_without_a_port_a_taken_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(command, "PORT", other.getsockname()[1])
        with command._listen("127.0.0.1", None) as listening:
            assert listening.getsockname()[1] != other.getsockname()[1]


def test_other_machines_are_let_in_only_with_a_token_file_and_by_one_name(
    founded: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN, encoding="ascii")

    assert "--token-file" in refused(founded / "alice", "--listen", "192.0.2.1")
    every = refused(founded / "alice", "--listen", "0.0.0.0", "--token-file", token)  # noqa: S104
    assert "name the one" in every


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        (TOKEN, 0o644, "other users"),
        (TOKEN, 0o620, "other users"),
        ("short", 0o600, "32 to 256"),
        (f"{TOKEN} {TOKEN}", 0o600, "32 to 256"),
        (f"{TOKEN}\u00e9", 0o600, "32 to 256"),
        (None, 0o600, "cannot be read"),
    ],
)
def test_a_token_file_that_others_can_read_or_guess_is_refused(
    tmp_path: Path, content: str | None, mode: int, complaint: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content, encoding="utf-8")
        path.chmod(mode)

    with pytest.raises(UserError, match=complaint) as error:
        command.read_token(path)
    assert "openssl rand -hex 32" in str(error.value)


def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    founded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "uvicorn" else name)

    assert "pip install" in refused(founded / "alice")


def test_the_start_of_a_node_imports_nothing_of_the_dashboard() -> None:
    program = (
        "import sys, defl.cli.serve, defl.cli.run, defl.cli.dashboard, defl.node.startup\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    imported = done.stdout.decode().split()

    assert "defl.node.startup" in imported
    strangers = ("defl.dashboard", "starlette", "uvicorn")
    assert [name for name in imported if name.startswith(strangers)] == []


# --- Beside a run --------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "client.py").write_text(CLIENT, encoding="utf-8")
    return folder


def announced(process: "subprocess.Popen[str]") -> str:
    return output_until(process, "dashboard: http").split("dashboard: ")[1].split()[0]


@pytest.mark.slow
def test_a_dashboard_beside_a_run_ends_with_it_and_its_files_verify_later(
    project: Path, tmp_path: Path
) -> None:
    """With the command that the page shows, for the last round and for one before it."""
    out = tmp_path / "run"
    process = start(
        "-m", "defl.cli.main", "run", str(project), "--out", str(out), "--rounds", "40",
        "--dashboard",
    )  # fmt: skip
    browser = Browser(announced(process))
    assert browser.json("/api/overview")["whole"] is True
    shown = process.communicate(timeout=120)[0]

    assert process.returncode == 0, shown
    assert f"to look    defl dashboard {out}" in shown
    with pytest.raises(ConnectionRefusedError):
        browser.get("/")
    with serving(out, "--port", 0) as (_, address):
        for number in (40, 39):
            assert verified(Browser(address), number, tmp_path) == 0


def verified(browser: Browser, number: int, folder: Path) -> int:
    page = browser.json(f"/api/rounds/{number}?node=node-1")
    files, command = page["files"], page["verify"]
    assert isinstance(files, list)
    assert isinstance(command, str)
    for file in files:
        (folder / file["name"]).write_bytes(browser.get(file["href"]))
    words = shlex.split(command)[1:]
    return defl(*(folder / word if "." in word else word for word in words)).code


@pytest.mark.slow
def test_killing_the_dashboard_changes_nothing_and_an_interrupt_ends_both(
    project: Path, tmp_path: Path
) -> None:
    process = start(
        "-m", "defl.cli.main", "run", str(project), "--out", str(tmp_path / "run"), "--rounds",
        "1000", "--dashboard",
    )  # fmt: skip
    browser = Browser(announced(process))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii")
    [beside] = [
        int(pid)
        for pid in children.split()
        if b"\0dashboard\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(beside, signal.SIGKILL)
    shown = output_until(process, "round 2 of 1000 closed")
    process.send_signal(signal.SIGINT)
    shown += process.communicate(timeout=LIMIT_S)[0]

    assert process.returncode == 130, shown
    with pytest.raises(ConnectionRefusedError):
        browser.get("/")


class _ServesUntilCtrlC:
    """Stands in for the dashboard's process."""

    waited = False

    def poll(self) -> None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        if timeout is None:
            self.waited = True
            raise KeyboardInterrupt
        return 0

    def terminate(self) -> None:
        pass


@pytest.mark.parametrize("is_terminal", [True, False])
def test_after_a_demonstration_the_page_stays_only_in_a_terminal(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process = _ServesUntilCtrlC()
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    with dashboard_beside(wanted=True, err=False) as beside:
        monkeypatch.setattr(beside, "_process", process)
        beside.stay()

    assert process.waited is is_terminal
    assert ("stays until Ctrl-C" in capsys.readouterr().out) is is_terminal
