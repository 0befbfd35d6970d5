"""A machine that asks for a place in a running federation: its card, and what it was told.

It gets the file that the founders agreed on and, by phone, the fingerprint of the present epoch.
Former members' keys could sign another history that begins with the same file. So a joiner says
that it is ready only once the history that it is shown has led to that fingerprint.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from defl.cards import Card
from defl.committee import Federation
from defl.crypto import Ed25519Scheme
from defl.errors import BrokenLineage, UserError
from defl.ids import Digest
from defl.lineage import federations_of
from defl.messages import Handover
from defl.node.report.lineage_file import read_lineage
from defl.node.setup.agreement import INITIAL_FILE, Agreement, read_federation
from defl.node.setup.config import NodeConfig, card_file, read_card_file, read_identity, read_node
from defl.node.setup.fingerprint import fingerprint, fingerprint_bytes
from defl.node.setup.identity import JOINER, Identity, card_text, make_card, says_the_same
from defl.node.setup.typed_toml import parse, quoted, read_bytes
from defl.node.store.storage import Storage

JOIN_FILE = "join.toml"
LINEAGE_FILE = "lineage.json"
CARD_SUFFIX = ".join.toml"


class JoinFile(Struct, frozen=True, forbid_unknown_fields=True):
    fingerprint: str


def join_card_file(folder: Path, name: str) -> Path:
    """Beside the card that founds federations, and not to be confused with it."""
    founder = card_file(folder, name)
    return founder.with_name(founder.name.removesuffix(".card.toml") + CARD_SUFFIX)


def prepare_join(
    folder: Path, federation_file: Path, typed: str, lineage: Path | None = None
) -> tuple[Agreement, Card]:
    """Write what a guest needs into its folder; returns the agreement and the card to hand over."""
    config = read_node(folder)
    identity = read_identity(folder, config.name)
    awaited = fingerprint_bytes(typed)
    agreement = read_federation(federation_file)
    _require_joiner(folder, config, identity, agreement, federation_file)
    if lineage is not None:
        _require_lineage(lineage, awaited, agreement.federation)
    card = _card(folder, config, identity, agreement.federation.chain)
    try:
        _copy(federation_file, folder / config.federation)
        initial = federation_file.parent / INITIAL_FILE
        if initial.is_file():
            _copy(initial, (folder / config.federation).parent / INITIAL_FILE)
        if lineage is not None:
            _copy(lineage, folder / LINEAGE_FILE)
        _write(folder / JOIN_FILE, _join_text(awaited))
        _write(join_card_file(folder, config.name), card_text(card, JOINER))
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return agreement, card


def _require_joiner(
    folder: Path,
    config: NodeConfig,
    identity: Identity,
    agreement: Agreement,
    federation_file: Path,
) -> None:
    if agreement.member(identity.public_key) is not None:
        raise UserError(
            f"{federation_file}: this node's key is a founder's, and a key has one place for ever; "
            f"start it with: defl node start {folder}; or, if its state is lost, make a new node "
            "(defl node init) and let that one join"
        )
    own = folder / config.federation
    if own.exists() and own.read_bytes() != agreement.text:
        raise UserError(
            f"{own} is the file of another federation; make a node of its own for each federation"
        )
    state = folder / config.state
    if Storage.exists(state) and not (folder / JOIN_FILE).exists():
        raise UserError(
            f"{folder} has run already and does not need to join; a machine that joins is new: "
            "make it with defl node init"
        )


def _require_lineage(path: Path, awaited: bytes, origin: Federation) -> None:
    try:
        reached = _leads_to(awaited, origin, read_lineage(path).handovers)
    except BrokenLineage as broken:
        raise UserError(f"{path}: {broken}; ask a member for its lineage again") from broken
    if not reached:
        raise UserError(
            f"{path} does not lead to the fingerprint that you typed: it is older, or it tells a "
            "forged history; ask a member that you trust to read the fingerprint again and to "
            "write a new lineage: defl export NODE lineage.json --lineage"
        )


def _card(folder: Path, config: NodeConfig, identity: Identity, origin: Digest) -> Card:
    """The same card if nothing has changed; else one that outranks it."""
    path = join_card_file(folder, config.name)
    old = read_card_file(path, origin) if path.exists() else None
    card = make_card(
        identity,
        config.address,
        0 if old is None else old.serial + 1,
        origin,
        reach=config.reach,
        relay=config.relay,
    )
    return old if old is not None and says_the_same(old, card) else card


def _join_text(awaited: bytes) -> str:
    return (
        "# Written by defl node join. This machine says that it is ready only once the\n"
        "# federation's history has led it to this fingerprint, as you heard it on the phone.\n"
        f"fingerprint = {quoted(fingerprint(Digest(awaited)))}\n"
    )


def _copy(source: Path, target: Path) -> None:
    if source.resolve() != target.resolve():
        shutil.copyfile(source, target)


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.writing")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def has_joined(folder: Path) -> bool:
    """Was this node made by `defl node join`?"""
    return (folder / JOIN_FILE).exists()


def awaited_chain(folder: Path, origin: Federation, handovers: Iterable[Handover]) -> bytes:
    """How the chain id begins that a joiner must see first; nothing once one of its epochs, which
    the handovers on its disk lead through, is the one that it was told of."""
    path = folder / JOIN_FILE
    if not path.exists():
        return b""
    awaited = fingerprint_bytes(parse(read_bytes(path, ""), JoinFile, path).fingerprint)
    return b"" if _leads_to(awaited, origin, handovers) else awaited


def _leads_to(awaited: bytes, origin: Federation, handovers: Iterable[Handover]) -> bool:
    epochs = federations_of(origin, handovers, Ed25519Scheme())
    return any(epoch.chain.startswith(awaited) for epoch in epochs)


def lineage_handovers(folder: Path, origin: Federation) -> tuple[Handover, ...]:
    """From the lineage that a joiner brought: with it, it knows the present members' addresses."""
    path = folder / LINEAGE_FILE
    if not path.exists():
        return ()
    handovers = read_lineage(path).handovers
    try:
        federations_of(origin, handovers, Ed25519Scheme())
    except BrokenLineage as broken:
        raise UserError(f"{path}: {broken}; delete it, or join again with a new one") from broken
    return handovers
