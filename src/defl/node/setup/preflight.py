"""Is this node ready to start? One check per question, each with what to do if it fails.

Nothing is changed and nothing is signed. reaching.py asks the peers.
"""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from defl.cards import Card, whereabouts
from defl.clients.prior import describe_one_class
from defl.committee import Federation
from defl.contacts import id_of
from defl.errors import UserError
from defl.ids import OUTSIDER
from defl.node.epoch_parts import Cards
from defl.node.net.proxy import proxies_of
from defl.node.setup.agreement import INITIAL_FILE, Agreement, read_federation
from defl.node.setup.config import (
    KEY_FILE,
    NodeConfig,
    card_file,
    read_card_file,
    read_identity,
    read_newer_cards,
    read_node,
)
from defl.node.setup.identity import Identity, certificate_key, certificate_validity
from defl.node.setup.initial import read_initial
from defl.node.setup.joining import has_joined
from defl.node.setup.present import present_facts
from defl.node.setup.reaching import Outlook, probe_peers
from defl.node.setup.requirements import Check, requirements_of
from defl.node.store.private import open_to_others
from defl.node.store.storage import exposed_to_others, lock_holder, require_real_state
from defl.node.work.environment import passed
from defl.node.work.first_weights import class_counts

# A file system may round times, and the clock may be corrected a little while a file is written.
CLOCK_STEP = timedelta(minutes=2)

T = TypeVar("T")


def preflight(folder: Path, *, peers: bool = True, client: bool = True) -> list[Check]:
    """Every check whose inputs are sound; a failed check leaves out those that depend on it.

    `client` loads the training code, unless the node runs and has it loaded already.
    """
    config = read_node(folder)
    checks = [_folder_mode(folder), *_state_mode(folder / config.state)]
    identity = _tried(checks, "identity", lambda: read_identity(folder, config.name))
    presentable = False
    if identity is not None:
        checks.append(Check("identity", True, f"{folder / KEY_FILE}, readable by its owner alone"))
        certificate = _certificate(identity)
        presentable = certificate.holds
        checks += [certificate, _clock(folder, identity)]
    card = _tried(checks, "card", lambda: read_card_file(card_file(folder, config.name)))
    if identity is not None and card is not None:
        checks.append(_card(folder, config, identity, card))
    checks.append(_port(config))
    if client and config.client and lock_holder(folder / config.state) is None:
        checks.append(_client(folder, config))
    path = folder / config.federation
    agreement = _tried(checks, "federation", lambda: read_federation(path))
    if agreement is None:
        return checks
    initial = path.parent / INITIAL_FILE
    if initial.exists() or not has_joined(folder):
        checks.append(_initial(initial, agreement))
    checks.append(_disk(folder, config, agreement))
    facts = _tried(checks, "state", lambda: present_facts(folder))
    if identity is not None and facts is not None:
        checks.append(_membership(folder, identity, card, facts, Cards(agreement.cards)))
        if presentable and peers:
            newer = _tried(checks, "cards", lambda: read_newer_cards(folder)) or {}
            checks += _peers(folder, config, identity, facts, agreement, list(newer.values()))
    return checks


def _client(folder: Path, config: NodeConfig) -> Check:
    environment = passed(os.environ, config.client_environment)
    try:
        counts = class_counts(config.client, folder / config.project, environment)
    except UserError as error:
        return Check("training code", False, str(error))
    if warning := describe_one_class(counts):
        return Check("training code", True, f"it loads. WARNING: {warning}", kind="one_class")
    if not counts:
        return Check("training code", True, f"{config.client} loads")
    labels = ", ".join(map(str, counts))
    return Check("training code", True, f"{config.client} loads; labels of each class: {labels}")


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
            f"others may enter it (mode {mode:04o}), but it holds all members' weights; do: "
            f"chmod 700 {folder}",
        )
    return Check("folder", True, f"{folder}, readable by its owner alone")


def _state_mode(state: Path) -> Iterator[Check]:
    try:
        require_real_state(state)
        open_paths = exposed_to_others(state)
    except (UserError, OSError) as error:
        yield Check("state folder", False, str(error))
        return
    if open_paths:
        path = open_paths[0]
        yield Check(
            "state folder",
            False,
            f"others may read {len(open_paths)} files and folders of it, for example {path} (mode "
            f"{open_to_others(path):04o}), but it holds all members' updates; do: chmod -R go= "
            f"{state}",
        )
    elif state.exists():
        yield Check("state folder", True, f"{state}, readable by its owner alone")


def _certificate(identity: Identity) -> Check:
    try:
        same = certificate_key(identity.certificate) == identity.public_key
        start, end = certificate_validity(identity.certificate)
    except UserError as error:
        return Check("certificate", False, str(error))
    if not same:
        return Check(
            "certificate",
            False,
            "its key is not that of node.key; restore this node's own files",
        )
    now = datetime.now(UTC)
    if not start <= now <= end:
        return Check(
            "certificate", False, f"valid from {start:%F} to {end:%F}, but it is {now:%F %T} UTC"
        )
    return Check("certificate", True, f"of this key, valid until {end:%F}")


def _clock(folder: Path, identity: Identity) -> Check:
    """The time must not be before this node was created. No time server is queried."""
    now = datetime.now(UTC)
    key_written = datetime.fromtimestamp((folder / KEY_FILE).stat().st_mtime, UTC)
    newest = max(key_written, certificate_validity(identity.certificate)[0])
    if now < newest - CLOCK_STEP:
        return Check(
            "clock",
            False,
            f"it is {now:%F %T} UTC, but this node was created on {newest:%F %T}; set the clock",
        )
    return Check("clock", True, f"{now:%F %T} UTC, not before this node was created")


def _card(folder: Path, config: NodeConfig, identity: Identity, card: Card) -> Check:
    for field, own, stated in (
        ("key", identity.public_key, card.key),
        ("certificate", identity.certificate, card.certificate),
        ("name", config.name, card.name),
        ("address", config.address, card.address),
        ("reach", config.reach, card.reach),
        ("relay", config.relay, card.relay),
    ):
        if own != stated:
            return Check("card", False, _card_advice(folder, field))
    return Check("card", True, f"{card.name} {whereabouts(card)}, serial {card.serial}")


def _card_advice(folder: Path, field: str) -> str:
    if field in ("address", "certificate", "reach", "relay"):
        return f"its {field} is no longer this node's; sign a new one: defl node card {folder}"
    return f"its {field} is not this node's; restore this node's own card"


def _membership(
    folder: Path, identity: Identity, card: Card | None, facts: Federation, cards: Cards
) -> Check:
    me = id_of(facts, identity.public_key)
    if me == OUTSIDER:
        return _outsider(folder, identity, facts)
    agreed = cards.of({me: facts.members[me]})[me]
    if agreed.name != identity.name:
        return Check(
            "federation",
            False,
            f"it calls this key {agreed.name!r}; restore this node's own key, or write "
            f"name = {agreed.name!r} in node.toml",
        )
    if agreed.certificate != identity.certificate and (
        card is None or card.serial <= agreed.serial
    ):
        return Check(
            "federation",
            False,
            "it has another certificate of this key, and the others refuse this one; restore the "
            "agreed node.crt, or sign a new card (defl node card) and send it to the others",
        )
    where = f"member {me} of {facts.committee.size}"
    return Check("federation", True, f"{where}, epoch {facts.epoch}, id {facts.chain.hex()[:16]}")


def _outsider(folder: Path, identity: Identity, facts: Federation) -> Check:
    if any(member.key == identity.public_key for member in facts.members):
        return Check("federation", False, f"this node has left it; epoch {facts.epoch} is present")
    if has_joined(folder):
        return Check(
            "federation",
            True,
            "this machine asks for a place; it runs as a guest until the members have approved it",
        )
    return Check(
        "federation",
        False,
        "this node's key is not among its members; give your card to the member that creates "
        "federation.toml, or ask for a place in the running federation: defl node join --help",
    )


def _initial(path: Path, agreement: Agreement) -> Check:
    try:
        manifest, _ = read_initial(path, agreement.federation)
    except UserError as error:
        return Check("initial weights", False, str(error))
    return Check("initial weights", True, f"digest {manifest.digest.hex()[:16]}, as agreed")


def _disk(folder: Path, config: NodeConfig, agreement: Agreement) -> Check:
    state = folder / config.state
    held = sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
    needed = max(0, requirements_of(agreement.federation).disk_bytes - held)
    free = shutil.disk_usage(state if state.exists() else folder).free
    balance = f"{free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB more needed at most"
    if free < needed:
        return Check("disk", False, f"{balance}; make room, or lower tau in a new federation")
    return Check("disk", True, balance)


def _port(config: NodeConfig) -> Check:
    if config.listen_at is None:
        return Check("listen port", True, "none: this node only dials")
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


def _peers(
    folder: Path,
    config: NodeConfig,
    identity: Identity,
    facts: Federation,
    agreement: Agreement,
    newer: list[Card],
) -> Iterator[Check]:
    me = id_of(facts, identity.public_key)
    if me == OUTSIDER:
        return  # the members answer only those whom they have approved
    try:
        proxies = proxies_of(config.proxy, os.environ)
    except UserError as error:
        yield Check("proxy", False, str(error))
        return
    if proxies.proxy is not None:
        yield Check("proxy", True, f"calls go through {proxies.proxy}")
    others = {peer: facts.members[peer] for peer in facts.committee.members if peer != me}
    is_running = lock_holder(folder / config.state) is not None
    outlook = Outlook(identity, config.reach, facts.origin, proxies, is_running)
    yield from probe_peers(outlook, Cards(agreement.cards).of(others), agreement.relays, newer)
