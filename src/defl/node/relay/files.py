"""A relay's folder, and the files that say whom it serves.

federation.toml names the founders. Members that joined later are proven by a lineage, which any
member can export; with one, the members of its newest epoch are served. A machine that asks for a
place must reach the members before it is one: the relay's operator puts its card into the folder.
"""

from pathlib import Path

from msgspec import Struct

from defl.cards import RELAY_ORIGIN, Card
from defl.crypto import Ed25519Scheme
from defl.errors import BrokenLineage, UserError
from defl.lineage import federations_of
from defl.node.epoch_parts import Cards
from defl.node.report.lineage_file import read_lineage
from defl.node.setup.agreement import Agreement, read_federation
from defl.node.setup.config import (
    CERTIFICATE_FILE,
    KEY_FILE,
    card_file,
    read_card_file,
    write_new,
)
from defl.node.setup.identity import (
    RELAY,
    Identity,
    card_text,
    certificate_pem,
    key_pem,
    make_card,
    split_address,
)
from defl.node.setup.typed_toml import parse, quoted, read_bytes
from defl.node.store.private import open_to_others

RELAY_FILE = "relay.toml"
GUEST_CARDS = "cards/*.join.toml"  # of machines that ask for a place


class RelayConfig(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    address: str
    listen: str

    def __post_init__(self) -> None:
        for field in ("address", "listen"):
            try:
                split_address(getattr(self, field))
            except UserError as error:
                raise UserError(f"{field}: {error}") from error

    @property
    def listen_at(self) -> tuple[str, int]:
        return split_address(self.listen)


def relay_card_file(folder: Path, name: str) -> Path:
    """Not to be confused with the members' cards, which are often named all at once."""
    member = card_file(folder, name)
    return member.with_name(member.name.removesuffix(".card.toml") + ".relay.toml")


def create_relay(folder: Path, config: RelayConfig, identity: Identity) -> Path:
    """Write a new relay's files; returns its card's. Nothing is overwritten."""
    for path in (folder / KEY_FILE, folder / CERTIFICATE_FILE, folder / RELAY_FILE):
        if path.exists():
            raise UserError(f"{path} exists and is not overwritten; choose another folder")
    if folder.exists() and (mode := open_to_others(folder)):
        raise UserError(
            f"{folder} exists, and others may enter it (mode {mode:04o}), but it will hold a key; "
            f"do: chmod 700 {folder}, or name a new folder"
        )
    card = relay_card_file(folder, config.name)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_new(folder / KEY_FILE, key_pem(identity), mode=0o600)
        write_new(folder / CERTIFICATE_FILE, certificate_pem(identity.certificate))
        write_new(folder / RELAY_FILE, _relay_text(config).encode())
        made = make_card(identity, config.address, origin=RELAY_ORIGIN, relay=True)
        write_new(card, card_text(made, RELAY).encode())
    except OSError as error:
        reason = f"{error.filename or folder}: cannot be written: {error.strerror}"
        raise UserError(reason) from error
    return card


def read_relay(folder: Path) -> RelayConfig:
    path = folder / RELAY_FILE
    hint = f"create a relay with: defl relay init {folder} --name NAME --address HOST:PORT"
    return parse(read_bytes(path, hint), RelayConfig, path)


def relay_card(agreement: Agreement, identity: Identity, federation: Path) -> Card:
    """The card of this relay in the agreed file."""
    for card in agreement.relays:
        if card.key == identity.public_key:
            return card
    raise UserError(
        f"{federation} does not name the relay {identity.name}, so no member would dial it; found "
        "the federation with its card: defl federation create ... --relay CARD"
    )


def served_members(
    folder: Path, federation: Path, lineage: Path | None
) -> tuple[Agreement, tuple[Card, ...]]:
    """The agreed file, and the cards of the members that it and the lineage prove, and of the
    guests in the relay's folder."""
    agreement = read_federation(federation)
    facts = agreement.federation
    if lineage is not None:
        try:
            handovers = read_lineage(lineage).handovers
            facts = federations_of(facts, handovers, Ed25519Scheme())[-1]
        except BrokenLineage as broken:
            raise UserError(f"{lineage}: {broken}; ask a member for its lineage again") from broken
    present = {member: facts.members[member] for member in facts.committee.members}
    guests = (read_card_file(path, facts.origin) for path in guest_paths(folder))
    served = {card.key: card for card in guests}
    served |= {card.key: card for card in Cards(agreement.cards).of(present).values()}
    return agreement, tuple(served.values())


def guest_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob(GUEST_CARDS))


def _relay_text(config: RelayConfig) -> str:
    return f"""\
# A relay's own settings.

name = {quoted(config.name)}
# Where the members dial this relay, as on its card in federation.toml.
address = {quoted(config.address)}
# Where this relay listens. 0.0.0.0 is every IPv4 interface, [::] every interface.
listen = {quoted(config.listen)}
"""
