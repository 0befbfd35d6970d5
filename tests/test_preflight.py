"""`defl node check`: real sockets, real TLS, and one thing wrong at a time."""

import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from defl.node.setup import preflight as preflight_module
from defl.node.setup import requirements as needs_module
from defl.node.setup.config import Agreement, read_identity, read_node
from defl.node.setup.identity import certificate_pem, make_identity
from support.founding import NAMES, agree, defl, found

TIME_MAX_S = 10.0


@contextmanager
def answering(folder: Path, agreement: Agreement, listener: socket.socket) -> Iterator[None]:
    """A member's door: TLS 1.3, only members come in; nothing is said inside."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=b"".join(c.certificate for c in agreement.cards))
    context.load_cert_chain(folder / "node.crt", folder / "node.key")
    with serving(listener, lambda plain: _greet(plain, context)):
        yield


def _greet(plain: socket.socket, context: ssl.SSLContext) -> None:
    try:
        with context.wrap_socket(plain, server_side=True) as secure:
            secure.recv(1)  # until the caller leaves
    except OSError:
        plain.close()


@contextmanager
def serving(listener: socket.socket, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """One caller is served."""
    listener.listen()
    listener.settimeout(TIME_MAX_S)

    def work() -> None:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        plain.settimeout(TIME_MAX_S)
        with plain:
            serve(plain)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        listener.close()
        thread.join(TIME_MAX_S)


class Doors:
    """Four nodes on free ports of this machine; alice is the one that checks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in NAMES}
        ports = tuple(listener.getsockname()[1] for listener in self.listeners.values())
        self.agreement = agree(folder, found(folder, ports))
        for name in NAMES:
            shutil.copy(folder / "federation.toml", folder / name)
            shutil.copy(folder / "initial.safetensors", folder / name)
        self.listeners["alice"].close()  # her own port is free: she is not running

    @property
    def alice(self) -> Path:
        return self.folder / "alice"

    def answering(self, name: str) -> Any:
        return answering(self.folder / name, self.agreement, self.listeners[name])

    def close(self) -> None:
        for listener in self.listeners.values():
            listener.close()


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    made = Doors(tmp_path)
    yield made
    made.close()


def wrong_in(folder: Path, *options: str) -> dict[str, str]:
    said = defl("node", "check", folder, "--json", *options)
    assert said.code == (0 if said.json["ready"] else 1)
    return {c["check"]: c["detail"] for c in said.json["checks"] if not c["holds"]}


def test_a_node_whose_peers_all_answer_is_ready(doors: Doors) -> None:
    with doors.answering("bob"), doors.answering("carol"), doors.answering("dan"):
        said = defl("node", "check", doors.alice)

    assert said.code == 0, said.text
    assert said.text.count("ok ") == len(said.text.splitlines()) - 2
    assert said.text.endswith("ready\n")


def test_each_peer_that_cannot_be_reached_has_its_reason(doors: Doors) -> None:
    doors.listeners["bob"].close()
    with (
        serving(doors.listeners["carol"], lambda plain: plain.sendall(b"HTTP/1.1 400 no\r\n\r\n")),
        answering(doors.folder / "bob", doors.agreement, doors.listeners["dan"]),
    ):
        wrong = wrong_in(doors.alice)

    assert set(wrong) == {"peer bob", "peer carol", "peer dan"}
    assert "nobody listens there" in wrong["peer bob"]
    assert "TLS failed" in wrong["peer carol"] or "hung up" in wrong["peer carol"]
    assert "another certificate than its card" in wrong["peer dan"]


def test_a_peer_that_does_not_know_this_node_is_told_apart(doors: Doors, tmp_path: Path) -> None:
    """Its federation.toml is another one: it turns this node away after the handshake."""
    strangers = Agreement(doors.agreement.federation, doors.agreement.cards[1:], b"")
    with (
        answering(doors.folder / "bob", strangers, doors.listeners["bob"]),
        doors.answering("carol"),
        doors.answering("dan"),
    ):
        wrong = wrong_in(doors.alice)

    assert set(wrong) == {"peer bob"}
    assert "the same federation.toml" in wrong["peer bob"]


def test_peers_need_not_be_asked(doors: Doors) -> None:
    assert wrong_in(doors.alice, "--no-peers") == {}


def test_a_key_that_others_may_read_is_found(doors: Doors) -> None:
    (doors.alice / "node.key").chmod(0o640)

    assert "chmod 600" in wrong_in(doors.alice, "--no-peers")["key"]


def test_the_check_names_a_folder_that_others_may_enter(doors: Doors) -> None:
    doors.alice.chmod(0o755)

    assert "chmod 700" in wrong_in(doors.alice, "--no-peers")["folder"]


def test_no_node_is_made_in_a_folder_that_others_may_enter(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    init = ("node", "init", folder, "--name", "erin", "--address", "127.0.0.1:7405")

    refused = defl(*init)
    assert refused.code == 2
    assert f"chmod 700 {folder}" in refused.text
    assert list(folder.iterdir()) == []

    folder.chmod(0o700)
    assert defl(*init).code == 0


def test_a_lost_key_is_found(doors: Doors) -> None:
    (doors.alice / "node.key").unlink()

    assert {"key", "identity"} == set(wrong_in(doors.alice, "--no-peers"))


def test_files_of_another_node_do_not_fit(doors: Doors) -> None:
    shutil.copy(doors.folder / "bob" / "node.key", doors.alice / "node.key")
    swapped = wrong_in(doors.alice)
    assert "another key" in swapped["certificate"]
    assert "its key is not this node's" in swapped["card"]
    assert "calls this key 'bob'" in swapped["federation"]
    assert "peers" in swapped


def test_a_changed_address_asks_for_a_new_card(doors: Doors) -> None:
    path = doors.alice / "node.toml"
    text = path.read_text(encoding="utf-8")
    old = read_node(doors.alice).address
    path.write_text(text.replace(f'address = "{old}"', 'address = "b:1"'), encoding="utf-8")

    assert f"defl node card {doors.alice}" in wrong_in(doors.alice, "--no-peers")["card"]
    signed = defl("node", "card", doors.alice, "--json").json
    assert (signed["address"], signed["serial"]) == ("b:1", 1)
    assert wrong_in(doors.alice, "--no-peers") == {}
    assert defl("node", "card", doors.alice, "--json").json == signed, "nothing moved since"


def test_a_card_of_another_key_is_not_counted_on(doors: Doors) -> None:
    shutil.copy(doors.folder / "bob" / "bob.card.toml", doors.alice / "alice.card.toml")

    said = defl("node", "card", doors.alice)

    assert said.code == 2
    assert "put this node's own card back" in said.text


def test_an_expired_certificate_and_a_clock_that_is_behind_are_found(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = read_identity(doors.alice, "alice")
    now = datetime.now(UTC)
    expired = make_identity(
        "alice",
        key=identity.key,
        valid_from=now - timedelta(days=9),
        valid_until=now - timedelta(days=1),
    )
    good = (doors.alice / "node.crt").read_bytes()
    (doors.alice / "node.crt").write_bytes(certificate_pem(expired.certificate))
    wrong = wrong_in(doors.alice, "--no-peers")
    assert "but it is" in wrong["certificate"]
    assert "another certificate" in wrong["federation"]

    class Behind(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return now.astimezone(tz) - timedelta(days=400)

    (doors.alice / "node.crt").write_bytes(good)
    monkeypatch.setattr(preflight_module, "datetime", Behind)
    assert "set the clock" in wrong_in(doors.alice, "--no-peers")["clock"]


def test_a_taken_port_is_found(doors: Doors) -> None:
    host, port = read_node(doors.alice).listen_at
    with socket.create_server((host, port)):
        assert "is the node running already?" in wrong_in(doors.alice, "--no-peers")["listen port"]


def test_too_little_room_is_found(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs_module, "LOG_BYTES", 2**62)

    assert "make room" in wrong_in(doors.alice, "--no-peers")["disk"]


def test_wrong_initial_weights_are_found(doors: Doors) -> None:
    initial = doors.alice / "initial.safetensors"
    save_file({**load_file(initial), "point": np.ones(64, np.float32)}, initial)
    assert "not the agreed one" in wrong_in(doors.alice, "--no-peers")["initial weights"]

    (doors.alice / "initial.safetensors").unlink()
    assert "no such file" in wrong_in(doors.alice, "--no-peers")["initial weights"]


def test_a_federation_without_this_node_is_found(doors: Doors, tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    agree(others, found(others))
    shutil.copy(others / "federation.toml", doors.alice)

    assert "give your card" in wrong_in(doors.alice, "--no-peers")["federation"]


def test_a_missing_or_spoilt_federation_file_is_one_of_the_answers(doors: Doors) -> None:
    path = doors.alice / "federation.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("tau =", "tao ="), encoding="utf-8")
    assert "did you mean 'tau'?" in wrong_in(doors.alice)["federation"]

    path.unlink()
    assert "ask another member" in wrong_in(doors.alice)["federation"]


def test_a_folder_without_a_node_cannot_be_checked(tmp_path: Path) -> None:
    said = defl("node", "check", tmp_path)

    assert said.code == 2
    assert "defl node init" in said.text
