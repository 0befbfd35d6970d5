"""The files of one node: its settings in node.toml, its key and certificate, its card.

Settings are typed, and unknown keys are refused. What all members agree on is in agreement.py.
"""

import os
import re
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Annotated

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from msgspec import Meta, Struct

from defl.cards import RELAY_ORIGIN, Card, Reach
from defl.committee import SECONDS_MAX
from defl.errors import UserError
from defl.ids import NO_DIGEST, Digest
from defl.node.files import NEWER_CARDS
from defl.node.net.proxy import WITHOUT_PROXY, parse_proxy
from defl.node.report.tracking import Track
from defl.node.setup.identity import (
    Identity,
    card_text,
    certificate_pem,
    key_pem,
    make_card,
    read_card,
    says_the_same,
    split_address,
)
from defl.node.setup.typed_toml import parse, quoted, read_bytes
from defl.node.store.birth import write_birth
from defl.node.store.private import open_to_others
from defl.node.work.environment import NAMED_FORM

CONFIG_FILE = "node.toml"
KEY_FILE = "node.key"
CERTIFICATE_FILE = "node.crt"

# One training; a longer one counts as hung.
WORK_TIME_MAX_S = 3600.0


# --- node.toml -----------------------------------------------------------------------------------


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class NodeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that an organisation chooses alone. Paths are relative to the node's folder."""

    name: str
    reach: Reach = Reach.BOTH
    address: str = ""
    listen: str = ""
    relay: bool = False
    proxy: str = ""
    federation: str = "federation.toml"
    client: str = ""  # "module:attribute"; empty until the organisation has one
    project: str = "."
    client_environment: tuple[str, ...] = ()
    state: str = "state"
    telemetry_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    log_format: LogFormat = LogFormat.TEXT
    log_level: LogLevel = LogLevel.INFO
    track: Track = Track.NONE
    work_time_max_s: Annotated[float, Meta(gt=0, le=SECONDS_MAX)] = WORK_TIME_MAX_S
    evaluation_time_max_s: Annotated[float, Meta(gt=0, le=SECONDS_MAX)] = 60.0
    keep_best: Annotated[str, Meta(pattern="^(-?[^-].*)?$")] = ""

    def __post_init__(self) -> None:
        if self.relay and self.reach is Reach.DIAL:
            raise UserError('relay: a node that nobody can dial (reach = "dial") cannot be a relay')
        for field in ("address", "listen"):
            if self.reach is Reach.DIAL and not getattr(self, field):
                continue
            try:
                split_address(getattr(self, field))
            except UserError as error:
                raise UserError(f"{field}: {error}") from error
        if self.client and not re.fullmatch(r"[\w.]+:[\w.]+", self.client):
            raise UserError(
                f"client: {self.client!r} is not a client: write module:attribute, "
                "for example my_project:client"
            )
        for variable in self.client_environment:
            if not NAMED_FORM.fullmatch(variable):
                raise UserError(
                    f"client_environment: {variable!r} names no environment variable: write its "
                    'name, such as "DATA_FOLDER", or how it begins, such as "AWS_*"'
                )
        if self.proxy not in ("", WITHOUT_PROXY):
            parse_proxy(self.proxy, "proxy")
        for field in ("work_time_max_s", "evaluation_time_max_s"):
            if not isfinite(getattr(self, field)):
                raise UserError(f"{field}: must be a number of seconds")

    def __repr__(self) -> str:
        return f"NodeConfig(name={self.name!r})"  # without the proxy's password

    @property
    def listen_at(self) -> tuple[str, int] | None:
        """None: this node only dials."""
        return split_address(self.listen) if self.listen else None


def node_text(config: NodeConfig) -> str:
    return f"""\
# This node's own settings. What all members agree on is in federation.toml.
# Paths are relative to this folder.

name = {quoted(config.name)}
# reach, address and relay are on the card: after a change run defl node card.
# "both": the others can dial this node. "dial": its network lets nothing in, so it dials them.
reach = {quoted(config.reach)}
# Where the other members dial this node; may be empty if it only dials.
address = {quoted(config.address)}
# Where this node listens. 0.0.0.0 is every IPv4 interface, [::] every interface; empty: nowhere,
# if it only dials.
listen = {quoted(config.listen)}
# true: this node also passes on the encrypted traffic of members that only dial.
relay = {str(config.relay).lower()}
# The HTTP proxy that leads out of your site, by CONNECT: "http://host:port". Empty: that of the
# environment (HTTPS_PROXY, NO_PROXY), if any; "none": never one. A password is better kept in the
# environment. If it is here, "http://user:password@host:port", only you may read this file
# (chmod 600).
proxy = {quoted(config.proxy)}

# The agreed file; its fingerprint (defl federation show) must be the same at every member.
federation = {quoted(config.federation)}

# Your training code: "module:attribute" of a client (defl/clients/protocol.py) in the project
# folder.
client = {quoted(config.client)}
project = {quoted(config.project)}
# Your training code gets the usual environment variables (docs/CLIENTS.md) and those named here:
# "DATA_FOLDER", or "AWS_*" for all that begin like this. No others: they may hold passwords.
client_environment = [{", ".join(map(quoted, config.client_environment))}]

# The folder of the log, the safety record and the weights. Never copy it to a second machine and
# never restore an old copy: a node that forgets what it signed could contradict itself.
state = {quoted(config.state)}

# The port of /metrics and /healthz on 127.0.0.1; 0 lets the system choose a free one.
telemetry_port = {config.telemetry_port}
# "text" for people, "json" for machines.
log_format = {quoted(config.log_format)}
# One of: {", ".join(LogLevel)}.
log_level = {quoted(config.log_level)}
# Figures of each round for an experiment tracker. One of: {", ".join(Track)}.
track = {quoted(config.track)}

# Training that takes longer than this is stopped and tried again.
work_time_max_s = {config.work_time_max_s}
# Your code evaluates each round's model between two trainings. An evaluation that takes longer than
# this is stopped, and there are no more until the node is restarted.
evaluation_time_max_s = {config.evaluation_time_max_s}
# Keeps the best round's model besides the newest: a metric that your evaluation returns, such as
# "accuracy" (the highest is best) or "-loss" (the lowest). Empty: none is kept. To get it:
# defl export FOLDER model.npz --round best
keep_best = {quoted(config.keep_best)}
"""


def read_node(folder: Path) -> NodeConfig:
    path = folder / CONFIG_FILE
    hint = f"create a node with: defl node init {folder} --name NAME --address HOST:PORT"
    if inside := sorted(folder.glob(f"*/{CONFIG_FILE}")):  # the folder of a whole run
        hint = f"name the folder of one node, for example {inside[0].parent}"
    config = parse(read_bytes(path, hint), NodeConfig, path)
    if "@" in config.proxy and (mode := open_to_others(path)):
        raise UserError(
            f"{path}: others may read the proxy's password (mode {mode:04o}); do: chmod 600 {path}"
        )
    return config


# --- The identity's files ------------------------------------------------------------------------


def card_file(folder: Path, name: str) -> Path:
    """Named for its owner, since the cards of all members end up in one folder."""
    return folder / (re.sub(r"[^\w.-]+", "-", name) + ".card.toml")


def create_node(folder: Path, config: NodeConfig, identity: Identity, card: Card) -> None:
    """Write a new node's files, with a key that was never used. Nothing is overwritten, the key
    least of all."""
    for path in (folder / KEY_FILE, folder / CERTIFICATE_FILE, folder / CONFIG_FILE):
        if path.exists():
            raise UserError(
                f"{path} exists and is not overwritten: a member that loses its key needs a new "
                "one by the others' approval; choose another folder, or move this one away yourself"
            )
    if folder.exists() and (mode := open_to_others(folder)):
        raise UserError(
            f"{folder} exists, and others may enter it (mode {mode:04o}), but it will hold a key "
            f"and all members' weights; do: chmod 700 {folder}, or name a new folder"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_new(folder / KEY_FILE, key_pem(identity), mode=0o600)
        write_birth(folder, identity.public_key)
        write_new(folder / CERTIFICATE_FILE, certificate_pem(identity.certificate))
        write_new(folder / CONFIG_FILE, node_text(config).encode())
        write_new(card_file(folder, config.name), card_text(card).encode())
    except OSError as error:
        raise UserError(f"{error.filename or folder}: cannot be written: {error.strerror}") from (
            error
        )


def write_new(path: Path, data: bytes, mode: int = 0o644) -> None:
    # Created with its mode, so that a key is never readable by others, not even for a moment.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_identity(folder: Path, name: str) -> Identity:
    hint = "this folder has lost its identity; restore the file from your own safe copy"
    key_path, certificate_path = folder / KEY_FILE, folder / CERTIFICATE_FILE
    key_bytes = read_bytes(key_path, hint)
    if mode := open_to_others(key_path):
        raise UserError(
            f"{key_path}: others may read this private key (mode {mode:04o}); do: chmod 600 "
            f"{key_path}"
        )
    try:
        key = load_pem_private_key(key_bytes, password=None)
    except (ValueError, TypeError) as error:
        raise UserError(f"{key_path}: not a private key in PEM form; {hint}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"{key_path}: not an Ed25519 key; {hint}")
    try:
        certificate = x509.load_pem_x509_certificate(read_bytes(certificate_path, hint))
    except ValueError as error:
        raise UserError(f"{certificate_path}: not a certificate in PEM form; {hint}") from error
    return Identity(name, key.private_bytes_raw(), certificate.public_bytes(Encoding.DER))


def read_card_file(path: Path, origin: Digest = NO_DIGEST) -> Card:
    """`origin`: as in `make_card`."""
    commands = {NO_DIGEST: "defl node init", RELAY_ORIGIN: "defl relay init"}
    command = commands.get(origin, "defl node join")
    data = read_bytes(path, f"{command} creates a card; ask its owner for it")
    try:
        return read_card(data.decode(), str(path), origin)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a card: {error}; ask its owner to send it again") from error


def read_newer_cards(folder: Path) -> dict[Path, Card]:
    """Of other members, whose address or reach has changed since the federation's file."""
    return {path: read_card_file(path) for path in sorted(folder.glob(NEWER_CARDS))}


def renew_card(folder: Path) -> Card:
    """A card for the current settings, with a higher serial; the old card if nothing changed.

    Of two cards the one with the higher serial is valid, so the new serial follows the old card's.
    """
    config = read_node(folder)
    identity = read_identity(folder, config.name)
    path = card_file(folder, config.name)
    old = read_card_file(path)
    if old.key != identity.public_key:
        raise UserError(f"{path}: the card of another key; restore this node's own card")
    card = make_card(
        identity, config.address, old.serial + 1, reach=config.reach, relay=config.relay
    )
    if says_the_same(old, card):
        return old
    new = path.with_name(f".{path.name}.writing")
    new.write_text(card_text(card), encoding="utf-8")
    new.replace(path)
    return card
