"""Is this node ready to start? Each question is answered on its own, with what to do about it.

Nothing is changed and nothing is signed; a peer sees one TLS handshake.
"""

import shutil
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from defl.errors import UserError
from defl.node.report.model_file import model_digest, shared_row
from defl.node.setup.check import Check
from defl.node.setup.config import (
    CERTIFICATE_FILE,
    INITIAL_FILE,
    KEY_FILE,
    Agreement,
    NodeConfig,
    card_file,
    open_to_others,
    read_card_file,
    read_federation,
    read_identity,
    read_node,
)
from defl.node.setup.identity import (
    Card,
    Identity,
    certificate_key,
    certificate_validity,
    split_address,
)
from defl.node.setup.requirements import needs_of

# A file system may round times, and the clock may be corrected a little while a file is written.
CLOCK_STEP = timedelta(minutes=2)
CONNECT_TIME_MAX_S = 5.0
# A TLS 1.3 server refuses a client's certificate only after the handshake; so long we listen.
REFUSAL_TIME_MAX_S = 0.5
PROBES_AT_ONCE_MAX = 32

T = TypeVar("T")


def preflight(folder: Path, *, peers: bool = True) -> list[Check]:
    """All checks that can be made; what depends on a broken one is left out."""
    config = read_node(folder)
    checks = [_folder_mode(folder), _key_mode(folder)]
    identity = _tried(checks, "identity", lambda: read_identity(folder, config.name))
    if identity is not None:
        checks += [_certificate(identity), _clock(folder, identity)]
    card = _tried(checks, "card", lambda: read_card_file(card_file(folder, config.name)))
    if identity is not None and card is not None:
        checks.append(_card(folder, config, identity, card))
    checks.append(_port(config))
    path = folder / config.federation
    agreement = _tried(checks, "federation", lambda: read_federation(path))
    if agreement is None:
        return checks
    checks.append(_initial(path.parent / INITIAL_FILE, agreement))
    checks.append(_disk(folder, config, agreement))
    if identity is not None:
        checks.append(_membership(identity, card, agreement))
    if identity is not None and peers:
        checks += _peers(folder, identity, agreement)
    return checks


def _tried(checks: list[Check], name: str, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except UserError as error:
        checks.append(Check(name, False, str(error)))
        return None


def _folder_mode(folder: Path) -> Check:
    if mode := open_to_others(folder):
        return Check(
            "folder",
            False,
            f"others may enter it (mode {mode:04o}), and everybody's weights lie in it; do: "
            f"chmod 700 {folder}",
        )
    return Check("folder", True, f"{folder}, its owner's alone")


def _key_mode(folder: Path) -> Check:
    path = folder / KEY_FILE
    if not path.exists():
        return Check("key", False, f"{path} is missing; put it back from your own safe copy")
    if mode := open_to_others(path):
        return Check("key", False, f"others may read it (mode {mode:04o}); do: chmod 600 {path}")
    return Check("key", True, f"{path}, its owner's alone")


def _certificate(identity: Identity) -> Check:
    try:
        same = certificate_key(identity.certificate) == identity.public_key
        start, end = certificate_validity(identity.certificate)
    except UserError as error:
        return Check("certificate", False, str(error))
    if not same:
        return Check("certificate", False, "it is about another key than this node's")
    now = datetime.now(UTC)
    if not start <= now <= end:
        return Check(
            "certificate", False, f"valid from {start:%F} to {end:%F}, but it is {now:%F %T} UTC"
        )
    return Check("certificate", True, f"of this key, valid until {end:%F}")


def _clock(folder: Path, identity: Identity) -> Check:
    """Nothing outside is asked: time may not lie before what was made here."""
    now = datetime.now(UTC)
    made = datetime.fromtimestamp((folder / KEY_FILE).stat().st_mtime, UTC)
    newest = max(made, certificate_validity(identity.certificate)[0])
    if now < newest - CLOCK_STEP:
        return Check(
            "clock",
            False,
            f"it is {now:%F %T} UTC here, but this node was made on {newest:%F %T}; set the clock",
        )
    return Check("clock", True, f"{now:%F %T} UTC, not before this node was made")


def _card(folder: Path, config: NodeConfig, identity: Identity, card: Card) -> Check:
    for what, mine, its in (
        ("key", identity.public_key, card.key),
        ("certificate", identity.certificate, card.certificate),
        ("name", config.name, card.name),
        ("address", config.address, card.address),
    ):
        if mine != its:
            return Check("card", False, _card_advice(folder, what))
    return Check("card", True, f"{card.name} at {card.address}, serial {card.serial}")


def _card_advice(folder: Path, what: str) -> str:
    if what in ("address", "certificate"):
        return f"its {what} is not this node's any more; sign a new one: defl node card {folder}"
    return f"its {what} is not this node's; put this node's own card back"


def _membership(identity: Identity, card: Card | None, agreement: Agreement) -> Check:
    me = agreement.member(identity.public_key)
    if me is None:
        return Check(
            "federation",
            False,
            "this node's key is not among its members; give your card to whoever makes "
            "federation.toml",
        )
    agreed = agreement.cards[me]
    if agreed.name != identity.name:
        return Check(
            "federation", False, f"it calls this key {agreed.name!r}, not this node's name"
        )
    if agreed.certificate != identity.certificate and (
        card is None or card.serial <= agreed.serial
    ):
        return Check(
            "federation",
            False,
            "it has another certificate of this key; the others refuse this one",
        )
    where = f"member {me} of {agreement.federation.committee.size}"
    return Check("federation", True, f"{where}, id {agreement.federation.chain.hex()[:16]}")


def _initial(path: Path, agreement: Agreement) -> Check:
    federation = agreement.federation
    try:
        digest = model_digest(federation, shared_row(path, federation.schema)[0])
    except UserError as error:
        return Check("initial weights", False, f"{error}; get the file with federation.toml")
    if digest != federation.initial:
        return Check(
            "initial weights", False, f"{path} is not the agreed one; get it with federation.toml"
        )
    return Check("initial weights", True, f"digest {digest.hex()[:16]}, as agreed")


def _disk(folder: Path, config: NodeConfig, agreement: Agreement) -> Check:
    state = folder / config.state
    held = sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
    needed = max(0, needs_of(agreement.federation).disk_bytes - held)
    free = shutil.disk_usage(state if state.exists() else folder).free
    told = f"{free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB more needed at most"
    if free < needed:
        return Check("disk", False, f"{told}; make room, or lower tau in a new federation")
    return Check("disk", True, told)


def _port(config: NodeConfig) -> Check:
    host, port = config.listen_at
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            # As the node itself does: a connection that just ended does not keep the port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(1)
    except OSError as error:
        return Check(
            "listen port",
            False,
            f"{config.listen}: {error.strerror or error}; is the node running already? "
            "Else choose another in node.toml",
        )
    return Check("listen port", True, f"{config.listen} is free")


def _peers(folder: Path, identity: Identity, agreement: Agreement) -> list[Check]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the certificate is compared with the card's instead
    try:
        context.load_cert_chain(folder / CERTIFICATE_FILE, folder / KEY_FILE)
    except ssl.SSLError as error:
        return [Check("peers", False, f"key and certificate do not make a TLS identity: {error}")]
    others = [card for card in agreement.cards if card.key != identity.public_key]
    with ThreadPoolExecutor(min(len(others), PROBES_AT_ONCE_MAX)) as pool:
        return list(pool.map(lambda card: probe(card, context), others))


def probe(card: Card, context: ssl.SSLContext) -> Check:
    """One handshake with a peer, and why there was none."""
    name = f"peer {card.name}"
    try:
        with (
            socket.create_connection(split_address(card.address), CONNECT_TIME_MAX_S) as plain,
            context.wrap_socket(plain) as secure,
        ):
            if secure.getpeercert(binary_form=True) != card.certificate:
                return Check(
                    name,
                    False,
                    f"{card.address} shows another certificate than its card: somebody else "
                    "listens there, or the member has a newer card",
                )
            _await_refusal(secure)
    except OSError as error:
        return Check(name, False, f"{card.address}: {_reason(error)}")
    return Check(name, True, f"{card.address} answers with its certificate")


def _await_refusal(secure: ssl.SSLSocket) -> None:
    secure.settimeout(REFUSAL_TIME_MAX_S)
    try:
        if secure.recv(1) == b"":
            raise ConnectionResetError("it hung up after the handshake")
    except TimeoutError:
        return


def _reason(error: OSError) -> str:
    match error:
        case socket.gaierror():
            return "the name is not known; check the address and this machine's DNS"
        case ConnectionRefusedError():
            return "nobody listens there; is the node started, and its port open?"
        case TimeoutError():
            return "no answer in time; is a firewall between?"
        case ssl.SSLError():
            return (
                f"TLS failed ({error.reason or error}); does it run DeFL, with the same "
                "federation.toml?"
            )
        case ConnectionResetError() | BrokenPipeError():
            return "it hung up; does it have the same federation.toml, with this node in it?"
    return error.strerror or str(error)
