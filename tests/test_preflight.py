"""`defl node check`: real sockets, real TLS, and one fault at a time."""

import asyncio
import fcntl
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from defl.ids import digest_of
from defl.node.net.transport import Refusal
from defl.node.setup import preflight as preflight_module
from defl.node.setup import requirements as requirements_module
from defl.node.setup.agreement import Agreement
from defl.node.setup.config import read_identity, read_node
from defl.node.setup.identity import certificate_pem, make_identity
from defl.node.store.private import privately
from defl.node.store.storage import LOCK
from support.doors import Doors, answering, failed_checks, serving
from support.founding import NAMES, agree, defl, init_nodes
from support.transports import Peer, running


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    doors = Doors(tmp_path)
    yield doors
    doors.close()


def test_a_node_whose_peers_all_answer_is_ready(doors: Doors) -> None:
    with doors.answering("bob"), doors.answering("carol"), doors.answering("dan"):
        result = defl("node", "check", doors.alice)

    assert result.code == 0, result.text
    assert result.text.count("ok ") == len(result.text.splitlines()) - 2
    assert result.text.endswith("ready\n")


def test_each_unreachable_peer_is_reported_with_its_reason(doors: Doors) -> None:
    doors.listeners["bob"].close()
    with (
        serving(doors.listeners["carol"], lambda plain: plain.sendall(b"HTTP/1.1 400 no\r\n\r\n")),
        answering(doors.folder / "bob", doors.agreement, doors.listeners["dan"]),
    ):
        failed = failed_checks(doors.alice)

    assert set(failed) == {"peer bob", "peer carol", "peer dan"}
    assert "nobody listens at " in failed["peer bob"]
    assert "another program answers" in failed["peer carol"]
    assert "another node answers: its key is" in failed["peer dan"]


def test_a_peer_without_this_nodes_card_is_reported_as_hanging_up(doors: Doors) -> None:
    """A peer with another federation.toml hangs up after the handshake."""
    strangers = Agreement(doors.agreement.federation, doors.agreement.cards[1:], b"")
    with (
        answering(doors.folder / "bob", strangers, doors.listeners["bob"]),
        doors.answering("carol"),
        doors.answering("dan"),
    ):
        failed = failed_checks(doors.alice)

    assert set(failed) == {"peer bob"}
    assert "the same federation.toml" in failed["peer bob"]


def test_a_peer_of_another_federation_is_reported_though_it_knows_this_node(
    doors: Doors,
) -> None:
    other = digest_of(b"the same cards, another file")
    with (
        answering(doors.folder / "bob", doors.agreement, doors.listeners["bob"], other),
        doors.answering("carol"),
        doors.answering("dan"),
    ):
        failed = failed_checks(doors.alice)

    assert set(failed) == {"peer bob"}
    assert f"bob is of another federation ({other.hex()[:16]}, ours is" in failed["peer bob"]
    assert "compare federation.toml" in failed["peer bob"]


@contextmanager
def holding_state(folder: Path) -> Iterator[None]:
    """As a running node does."""
    (folder / "state").mkdir(0o700)
    with open(folder / "state" / LOCK, "w", opener=privately) as lock:
        lock.write("1")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("here", [True, False], ids=["in this folder", "in a copy of it"])
def test_a_check_beside_the_running_node_costs_it_no_connection(doors: Doors, here: bool) -> None:
    """The peers are real and connected to the running node; a copy's check names that one."""
    cards, chain = doors.agreement.cards, doors.agreement.federation.chain
    identities = [read_identity(doors.folder / name, name) for name in NAMES]
    own_listener = socket.create_server(("127.0.0.1", 0))

    async def scenario() -> dict[str, str]:
        sockets = [own_listener, *(doors.listeners[name] for name in NAMES[1:])]
        peers = [
            Peer(i, cards, sockets[i], identity=identities[i], origin=chain)
            for i in range(len(cards))
        ]
        alice, *others = peers
        async with running(*peers):
            await alice.until_connected(*others)
            for other in others:
                await other.until_connected(alice)
            failed = await asyncio.to_thread(failed_checks, doors.alice)
            for other in others:
                await other.until(lambda p=other: p.transport.stats.refusals[Refusal.PROBE] == 1)
                assert other.events.count(("connected", alice.me)) == 1
                assert ("disconnected", alice.me) not in other.events
                assert alice.me not in other.transport.stats.trouble
        return failed

    with holding_state(doors.alice) if here else nullcontext():
        failed = asyncio.run(scenario())
    assert set(failed) == (set() if here else {f"peer {name}" for name in NAMES[1:]})
    assert all("another process that has this node's key" in why for why in failed.values())


def test_the_no_peers_option_skips_the_peer_checks(doors: Doors) -> None:
    assert failed_checks(doors.alice, "--no-peers") == {}


def test_a_key_readable_by_others_is_refused_by_check_and_start(doors: Doors) -> None:
    key = doors.alice / "node.key"
    key.chmod(0o644)

    assert f"chmod 600 {key}" in failed_checks(doors.alice, "--no-peers")["identity"]
    refused = defl("node", "start", doors.alice)
    assert refused.code == 2
    assert f"others may read this private key (mode 0644); do: chmod 600 {key}" in refused.text


def test_the_check_reports_a_folder_open_to_others(doors: Doors) -> None:
    doors.alice.chmod(0o755)

    assert "chmod 700" in failed_checks(doors.alice, "--no-peers")["folder"]


def test_node_init_refuses_a_folder_open_to_others(tmp_path: Path) -> None:
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


def test_a_missing_key_is_reported(doors: Doors) -> None:
    (doors.alice / "node.key").unlink()

    assert "no such file" in failed_checks(doors.alice, "--no-peers")["identity"]


def test_the_key_of_another_node_is_reported(doors: Doors) -> None:
    shutil.copy(doors.folder / "bob" / "node.key", doors.alice / "node.key")
    swapped = failed_checks(doors.alice)
    assert "not that of node.key" in swapped["certificate"]
    assert "its key is not this node's" in swapped["card"]
    assert "calls this key 'bob'" in swapped["federation"]
    assert not any(name.startswith("peer ") for name in swapped), (
        "skipped: with a foreign key it cannot connect"
    )


def test_a_changed_address_requires_a_new_card(doors: Doors) -> None:
    path = doors.alice / "node.toml"
    text = path.read_text(encoding="utf-8")
    old = read_node(doors.alice).address
    path.write_text(text.replace(f'address = "{old}"', 'address = "b:1"'), encoding="utf-8")

    assert f"defl node card {doors.alice}" in failed_checks(doors.alice, "--no-peers")["card"]
    signed = defl("node", "card", doors.alice, "--json").json
    assert (signed["address"], signed["serial"]) == ("b:1", 1)
    assert failed_checks(doors.alice, "--no-peers") == {}
    assert defl("node", "card", doors.alice, "--json").json == signed, "nothing has changed since"


def test_a_card_of_another_key_is_not_renewed(doors: Doors) -> None:
    shutil.copy(doors.folder / "bob" / "bob.card.toml", doors.alice / "alice.card.toml")

    result = defl("node", "card", doors.alice)

    assert result.code == 2
    assert "restore this node's own card" in result.text


def test_an_expired_certificate_and_a_slow_clock_are_reported(
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
    failed = failed_checks(doors.alice, "--no-peers")
    assert "but it is" in failed["certificate"]
    assert "another certificate" in failed["federation"]

    class Behind(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return now.astimezone(tz) - timedelta(days=400)

    (doors.alice / "node.crt").write_bytes(good)
    monkeypatch.setattr(preflight_module, "datetime", Behind)
    assert "set the clock" in failed_checks(doors.alice, "--no-peers")["clock"]


def test_a_port_in_use_is_reported(doors: Doors) -> None:
    host, port = read_node(doors.alice).listen_at
    with socket.create_server((host, port)):
        assert (
            "is the node running already?"
            in failed_checks(doors.alice, "--no-peers")["listen port"]
        )


def test_too_small_a_disk_is_reported(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements_module, "LOG_BYTES", 2**62)

    assert "make room" in failed_checks(doors.alice, "--no-peers")["disk"]


@pytest.mark.parametrize("point", [np.ones(64, np.float32), np.zeros(65, np.float32)])
def test_initial_weights_of_another_federation_are_reported_with_advice(
    doors: Doors, point: np.ndarray[Any, Any]
) -> None:
    initial = doors.alice / "initial.safetensors"
    save_file({**load_file(initial), "point": point}, initial)

    detail = failed_checks(doors.alice, "--no-peers")["initial weights"]

    assert f"{initial} and federation.toml do not belong together" in detail
    assert "copy both files from one member" in detail
    assert detail in defl("node", "start", doors.alice).text


def test_missing_initial_weights_are_reported_with_their_source(doors: Doors) -> None:
    (doors.alice / "initial.safetensors").unlink()

    detail = failed_checks(doors.alice, "--no-peers")["initial weights"]

    assert "no such file; every member has initial.safetensors: copy it from any of" in detail


def test_a_federation_without_this_node_is_reported(doors: Doors, tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    agree(others, init_nodes(others))
    shutil.copy(others / "federation.toml", doors.alice)

    assert "give your card" in failed_checks(doors.alice, "--no-peers")["federation"]


def test_a_missing_or_malformed_federation_file_is_reported(doors: Doors) -> None:
    path = doors.alice / "federation.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("tau =", "tao ="), encoding="utf-8")
    assert "did you mean 'tau'?" in failed_checks(doors.alice)["federation"]

    path.unlink()
    assert "ask another member" in failed_checks(doors.alice)["federation"]


def test_a_folder_without_a_node_cannot_be_checked(tmp_path: Path) -> None:
    result = defl("node", "check", tmp_path)

    assert result.code == 2
    assert "defl node init" in result.text
