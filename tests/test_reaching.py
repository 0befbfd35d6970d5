"""`defl node check` tells a network team what is blocked, one sentence for each cause."""

import contextlib
import errno
import io
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from defl.cards import Reach
from defl.errors import UserError
from defl.ids import NodeId, digest_of
from defl.lab.experiments.processes import Nodes
from defl.node.net import connecting
from defl.node.net.obstacles import CallStage, Obstacle, dial_refusal, is_about_certificate
from defl.node.net.proxy import Proxies
from defl.node.net.refusal import Refusal
from defl.node.net.route import DIRECT, Route, RouteKind
from defl.node.setup.config import read_identity, read_node, renew_card
from defl.node.setup.identity import (
    card_text,
    certificate_names,
    certificate_pem,
    make_card,
    make_identity,
    node_key_of,
)
from defl.node.setup.reaching import Outlook, probe_peers
from defl.node.startup import open_node
from support.doors import Doors, answering, serving
from support.founding import NAMES, agree, cards_in, defl
from support.logs import log_to
from support.proxies import always, forged, inspect, inspecting_context, refusal, tunnelling
from support.relays import relay_in_a_thread
from support.transports import IDENTITIES, address_of, listener


@pytest.fixture
def doors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Doors]:
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    doors = Doors(tmp_path)
    yield doors
    doors.close()


def check_of(doors: Doors, name: str) -> dict[str, Any]:
    """What the check of one peer says to programs."""
    report = defl("node", "check", doors.alice, "--json").json
    return next(check for check in report["checks"] if check["check"] == name)


def set_proxy(doors: Doors, proxy: str) -> None:
    path = doors.alice / "node.toml"
    text = path.read_text(encoding="utf-8")
    assert 'proxy = ""' in text
    path.write_text(text.replace('proxy = ""', f'proxy = "{proxy}"'), encoding="utf-8")
    path.chmod(0o600)


def alone(doors: Doors, name: str) -> socket.socket:
    """This member's listener; nobody listens for the others, so that the check is quick."""
    for other in NAMES:
        if other != name:
            doors.listeners[other].close()
    return doors.listeners[name]


@contextmanager
def only_bob(doors: Doors) -> Iterator[None]:
    """Bob answers, and nobody else."""
    alone(doors, "bob")
    with doors.answering("bob"):
        yield


def test_a_peer_that_answers_is_reached_and_the_way_is_told(doors: Doors) -> None:
    with only_bob(doors):
        check = check_of(doors, "peer bob")

    assert (check["holds"], check["kind"]) == (True, "reached")
    assert check["detail"].endswith("answers as a member of this federation (direct)")


def test_a_closed_port_is_told(doors: Doors) -> None:
    with only_bob(doors):
        check = check_of(doors, "peer carol")

    assert check["kind"] == Refusal.CLOSED
    assert check["detail"].startswith("nobody listens at ")


def test_a_firewall_that_drops_is_told(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue of a listening socket drops packets, as a firewall does."""
    monkeypatch.setattr(connecting, "TCP_S", 0.2)
    carol = alone(doors, "carol")
    carol.listen(0)
    crowd = [socket.socket() for _ in range(3)]
    for caller in crowd:
        caller.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            caller.connect(carol.getsockname())

    check = check_of(doors, "peer carol")

    for caller in crowd:
        caller.close()
    assert check["kind"] == Refusal.SILENT
    address = f"127.0.0.1:{carol.getsockname()[1]}"
    assert f"ask your network team to allow TCP out to {address}" in check["detail"]


def test_a_name_that_cannot_be_resolved_is_told(doors: Doors) -> None:
    bob = read_identity(doors.folder / "bob", "bob")
    card = make_card(bob, "bob.example.invalid:7400", serial=1)

    refused = dial_refusal(
        Obstacle(socket.gaierror(), CallStage.CONNECTING, DIRECT, None, datetime.now(UTC)), card
    )

    assert refused.kind is Refusal.NAME
    assert refused.text.startswith("bob.example.invalid:7400: the name cannot be resolved")


# --- Proxies -------------------------------------------------------------------------------------


def test_peers_are_reached_through_the_proxy_of_node_toml(doors: Doors) -> None:
    with tunnelling() as server, only_bob(doors):
        set_proxy(doors, f"http://alice:s3cret@127.0.0.1:{server.port}")
        result = defl("node", "check", doors.alice)

    assert f"ok  proxy: calls go through alice@127.0.0.1:{server.port}" in result.text
    assert f"(through the proxy 127.0.0.1:{server.port})" in result.text
    assert "s3cret" not in result.text
    assert all("Proxy-Authorization: Basic" in request for request in server.requests)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (refusal("403 Forbidden"), Refusal.PROXY_FORBIDS, "(403 Forbidden)"),
        (refusal("407 Auth"), Refusal.PROXY_LOGIN, "asks for a user and password"),
        (refusal("504 Timeout"), Refusal.PROXY_NO_WAY, "(504 Timeout)"),
        (b"SSH-2.0-x\r\n", Refusal.NOT_A_PROXY, "is not an HTTP proxy"),
    ],
)
def test_a_refusing_proxy_is_told_with_its_own_words(
    doors: Doors, answer: bytes, kind: Refusal, words: str
) -> None:
    with tunnelling(always(answer)) as server:
        set_proxy(doors, server.url)
        check = check_of(doors, "peer bob")

    assert check["kind"] == kind
    assert words in check["detail"]
    assert f"127.0.0.1:{server.port}" in check["detail"]


def test_the_environments_proxy_does_not_come_between_nodes_of_one_machine(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tunnelling() as server, only_bob(doors):
        monkeypatch.setenv("HTTPS_PROXY", server.url)
        check = check_of(doors, "peer bob")

    assert check["detail"].endswith("(direct)")
    assert server.requests == []


def test_an_unusable_proxy_in_the_environment_is_a_check_of_its_own(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://alice:s3cret@proxy:1080")

    result = defl("node", "check", doors.alice)

    assert "NO  proxy: HTTPS_PROXY: only proxies that" in result.text
    assert "s3cret" not in result.text
    assert "peer bob" not in result.text
    with pytest.raises(UserError, match="HTTPS_PROXY: only proxies that"):
        open_node(doors.alice, log_to(io.StringIO()))


def test_a_password_that_others_may_read_is_refused_like_the_key(doors: Doors) -> None:
    set_proxy(doors, "http://alice:s3cret@proxy.site:3128")
    path = doors.alice / "node.toml"
    path.chmod(0o640)

    for command in ("check", "start"):
        refused = defl("node", command, doors.alice)
        assert refused.code == 2
        assert f"others may read the proxy's password (mode 0640); do: chmod 600 {path}" in (
            refused.text
        )

    path.write_text(path.read_text(encoding="utf-8").replace("alice:s3cret@", ""), encoding="utf-8")
    assert "others may read" not in defl("node", "check", doors.alice, "--no-peers").text


# --- Members that only dial ----------------------------------------------------------------------


def outlook_of(reach: Reach) -> Outlook:
    return Outlook(IDENTITIES[0], reach, digest_of(b"a federation"), Proxies())


def test_members_that_only_dial_are_told_how_they_meet() -> None:
    dialler = {NodeId(1): make_card(IDENTITIES[1], "", reach=Reach.DIAL)}
    relay = {NodeId(2): make_card(IDENTITIES[2], closed_address(), relay=True)}

    (check,) = probe_peers(outlook_of(Reach.BOTH), dialler)
    assert (check.holds, check.kind) == (True, "only_dials")
    assert check.detail == "only dials: it will dial this node"

    (check,) = probe_peers(outlook_of(Reach.DIAL), dialler)
    assert (check.holds, check.kind) == (False, "no_relay")
    assert "relay = true" in check.detail

    check, _ = probe_peers(outlook_of(Reach.DIAL), dialler | relay)
    assert (check.holds, check.kind) == (True, "only_dials")
    assert check.detail.endswith("through the relay member 2")


def test_a_newer_card_in_the_nodes_folder_replaces_the_agreed_one(doors: Doors) -> None:
    carol = read_identity(doors.folder / "carol", "carol")
    newer = doors.alice / "cards" / "carol.card.toml"
    newer.parent.mkdir()
    card = make_card(carol, "", serial=1, reach=Reach.DIAL)
    newer.write_text(card_text(card), encoding="utf-8")
    with only_bob(doors):
        check = check_of(doors, "peer carol")

    assert (check["holds"], check["kind"]) == (True, "only_dials")


def test_a_relay_is_tried_by_a_node_that_only_dials() -> None:
    gone = make_card(IDENTITIES[3], closed_address())
    assert probe_peers(outlook_of(Reach.BOTH), {}, [gone]) == []
    (check,) = probe_peers(outlook_of(Reach.DIAL), {}, [gone])
    assert (check.name, check.holds, check.kind) == ("relay member 3", False, Refusal.CLOSED)

    for served, kind, detail in (
        (IDENTITIES[0], "reached", "serves this node (direct)"),
        (IDENTITIES[1], Refusal.UNKNOWN, "in its federation.toml, lineage or cards?"),
    ):
        bound = listener()
        relay = make_card(IDENTITIES[3], address_of(bound))
        members = [make_card(served, "", reach=Reach.DIAL)]
        with relay_in_a_thread(bound, members, IDENTITIES[3]):
            (check,) = probe_peers(outlook_of(Reach.DIAL), {}, [relay])
        assert (check.holds, check.kind) == (kind == "reached", kind)
        assert check.detail.endswith(detail)


def closed_address() -> str:
    with listener() as bound:
        return address_of(bound)


# --- Certificates --------------------------------------------------------------------------------


@pytest.mark.parametrize("tls_1_3", [True, False], ids=["TLS 1.3", "TLS 1.2 only"])
def test_tls_inspection_is_told_with_the_certificate_and_what_to_ask_for(
    doors: Doors, tls_1_3: bool
) -> None:
    """The forged certificate has expired too: that is not what must be mended."""
    context = inspecting_context(doors.folder, "bob.example.org", tls_1_3=tls_1_3)
    heard: list[bytes] = []
    with serving(alone(doors, "bob"), lambda plain: inspect(plain, context, heard)):
        check = check_of(doors, "peer bob")

    assert check["kind"] == Refusal.INTERCEPTED
    address = "127.0.0.1:{}".format(doors.agreement.cards[1].address.split(":")[1])
    assert check["detail"] == (
        f"{address}: TLS is intercepted, or another program answers: the certificate is of "
        '"CN=bob.example.org", issued by "CN=Inspection CA,O=General Hospital"; ask your network '
        f"team to exempt {address} from TLS inspection"
    )
    assert heard == [], "nothing is sent to whoever shows a foreign certificate"


def test_an_inspector_behind_the_proxy_is_told_with_the_way(doors: Doors) -> None:
    context = inspecting_context(doors.folder, "bob.example.org")
    with (
        tunnelling() as server,
        serving(alone(doors, "bob"), lambda plain: inspect(plain, context, [])),
    ):
        set_proxy(doors, server.url)
        check = check_of(doors, "peer bob")

    assert check["kind"] == Refusal.INTERCEPTED
    assert f"through the proxy 127.0.0.1:{server.port}: TLS is intercepted" in check["detail"]


def test_a_node_with_another_key_is_told_from_an_inspector(doors: Doors) -> None:
    with answering(doors.folder / "dan", doors.agreement, alone(doors, "bob")):
        check = check_of(doors, "peer bob")

    bob, dan = doors.agreement.cards[1], doors.agreement.cards[3]
    assert check["kind"] == Refusal.OTHER_KEY
    assert f"its key is {dan.key.hex()[:16]}..., but bob's agreed key is" in check["detail"]
    assert bob.key.hex()[:16] in check["detail"]


def test_a_renewed_certificate_of_the_agreed_key_asks_for_the_newer_card(doors: Doors) -> None:
    bob = doors.folder / "bob"
    renewed = make_identity("bob", key=read_identity(bob, "bob").key)
    (bob / "node.crt").write_bytes(certificate_pem(renewed.certificate))
    with answering(bob, doors.agreement, alone(doors, "bob")):
        check = check_of(doors, "peer bob")

    assert check["kind"] == Refusal.CERTIFICATE
    assert "another certificate of the agreed key" in check["detail"]
    assert "ask bob for the newer card" in check["detail"]


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [(1, 9, "is valid from"), (-9, -1, "expired on")],
    ids=["not yet valid", "expired"],
)
def test_the_agreed_certificate_at_the_wrong_time_asks_for_the_clock(
    doors: Doors, start: int, end: int, words: str
) -> None:
    bob, now = doors.folder / "bob", datetime.now(UTC)
    identity = make_identity(
        "bob",
        key=read_identity(bob, "bob").key,
        valid_from=now + timedelta(days=start),
        valid_until=now + timedelta(days=end),
    )
    (bob / "node.crt").write_bytes(certificate_pem(identity.certificate))
    renew_card(bob)
    agree(doors.folder, cards_in(doors.folder), "--force")
    shutil.copy(doors.folder / "federation.toml", doors.alice)
    with answering(bob, doors.agreement, alone(doors, "bob")):
        check = check_of(doors, "peer bob")

    assert check["kind"] == Refusal.CLOCK
    assert words in check["detail"]
    assert "this machine's clock says" in check["detail"]
    assert "set the clock" in check["detail"]


def test_the_nodes_of_one_machine_use_no_proxy_whatever_the_environment_says(
    tmp_path: Path,
) -> None:
    """A laptop's odd proxy must not keep `defl run` from starting."""
    folder = Nodes(tmp_path / "federation", 4, 1).local.nodes[0]

    assert read_node(folder).proxy == "none"


@pytest.mark.filterwarnings("ignore:Parsed a serial number which wasn't positive")
def test_only_the_form_of_a_nodes_certificate_counts_as_a_nodes() -> None:
    identity = make_identity("bob")
    assert node_key_of(identity.certificate) == identity.public_key
    assert node_key_of(forged("bob.example.org")[0]) is None
    for subject in ("bob.example.org", identity.public_key.hex()):
        assert node_key_of(forged(subject, Ed25519PrivateKey.generate())[0]) is None
    assert node_key_of(b"") is None
    for position in range(len(identity.certificate)):
        for bit in range(8):
            bent = bytearray(identity.certificate)
            bent[position] ^= 1 << bit
            assert node_key_of(bytes(bent)) in (None, identity.public_key)
            assert len(certificate_names(bytes(bent))) == 2


def test_the_names_that_an_inspector_chose_are_shown_escaped_and_shortened() -> None:
    card = make_card(make_identity("bob"), "bob.example.org:7400")
    error = ssl.SSLError(1, "wrong version")
    shown, _ = forged("\x1b[2J" + "x" * 50)

    refused = dial_refusal(
        Obstacle(error, CallStage.SECURING, DIRECT, shown, datetime.now(UTC)), card
    )

    assert refused.kind is Refusal.INTERCEPTED
    assert refused.text.isprintable()
    assert len(refused.text) < 500


# --- What loopback cannot do ---------------------------------------------------------------------


def test_a_crowded_node_is_not_taken_for_a_firewall_nor_called_for_a_second_look() -> None:
    error = ssl.SSLError(1, "[SSL: TLSV1_ALERT_INTERNAL_ERROR] tlsv1 alert internal error")
    card = make_card(make_identity("bob"), "bob.example.org:7400")

    obstacle = Obstacle(error, CallStage.SECURING, DIRECT, None, datetime.now(UTC))
    refused = dial_refusal(obstacle, card)

    assert not is_about_certificate(error, CallStage.SECURING)
    assert refused.kind == "crowded"
    assert "too many call it at once" in refused.text
    assert "ask bob" in refused.text
    assert "firewall" not in refused.text


@pytest.mark.parametrize(
    ("error", "stage", "kind", "words"),
    [
        (OSError(errno.EHOSTUNREACH, "No route to host"), "CONNECTING", "unreachable", "no route"),
        (OSError(errno.EMFILE, "Too many"), "CONNECTING", "unreachable", "cannot be reached: Too"),
        (TimeoutError(), "SECURING", "slow", "does not answer to TLS in time"),
        (
            ConnectionResetError("cut"),
            "SECURING",
            "gone",
            "ask bob whether its status says `crowded`",
        ),
        (ConnectionAbortedError("SSL handshake is taking longer than 5 s"), "SECURING", "slow", ""),
        (ssl.SSLError(1, "WRONG_VERSION"), "SECURING", "not_tls", "another program answers"),
        (ssl.SSLCertVerificationError(1, "x"), "SECURING", "certificate", "not its card's"),
        (TimeoutError(), "GREETING", "unknown", "no hello came in time"),
        (ConnectionResetError("cut"), "GREETING", "unknown", "the same federation.toml"),
    ],
)
def test_each_stage_has_its_own_sentence(error: OSError, stage: str, kind: str, words: str) -> None:
    if isinstance(error, ssl.SSLError):
        error.reason = "WRONG_VERSION_NUMBER"
    if isinstance(error, ssl.SSLCertVerificationError):
        error.verify_code, error.verify_message = 18, "self-signed certificate"
    card = make_card(make_identity("bob"), "bob.example.org:7400")
    route = Route(RouteKind.PROXY, "proxy.site:3128")

    refused = dial_refusal(Obstacle(error, CallStage[stage], route, None, datetime.now(UTC)), card)

    assert refused.kind == kind
    assert words in refused.text
    assert refused.text.startswith("bob.example.org:7400, through the proxy proxy.site:3128: ")
