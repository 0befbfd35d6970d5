"""Opening the node of a folder: its settings, its key, the federation, and its state on disk.

The state is created at the first start and never again: a node that lost it has forgotten what it
signed, and may only observe. So does one whose key came without its birth record.
"""

import os
from pathlib import Path

from defl.errors import UserError
from defl.node.files import STARTED_FILE
from defl.node.node import Node
from defl.node.report.log import Log
from defl.node.setup.agreement import INITIAL_FILE, Agreement, read_federation
from defl.node.setup.config import read_identity, read_newer_cards, read_node
from defl.node.setup.identity import Identity
from defl.node.setup.initial import read_initial
from defl.node.setup.joining import has_joined, lineage_handovers
from defl.node.store.birth import WITHOUT_BIRTH, consume_birth, has_birth
from defl.node.store.disk import disk_faults, sync_folder
from defl.node.store.records import DATABASE
from defl.node.store.storage import Storage
from defl.node.work.environment import unset_names

# Why a node observes that was started with --observer on an empty state.
LOST = (
    "its state is lost, so what this node signed is not known; make a new key with defl node init "
    "and have it replace this one: defl federation propose --replace-key"
)


def open_node(folder: Path, log: Log, *, observer: bool = False) -> Node:
    config = read_node(folder)
    agreement = read_federation(folder / config.federation)
    identity = read_identity(folder, config.name)
    state, started = folder / config.state, folder / STARTED_FILE
    if not Storage.exists(state):
        if (started.exists() or Storage.was_used(state)) and not observer:
            raise UserError(
                f"{state / DATABASE} is gone, and with it the record of what this node signed: "
                "restore the same folder, never an older copy, or follow without signing: defl "
                f"node start --observer {folder}"
            )
        if agreement.member(identity.public_key) is None and not has_joined(folder):
            raise UserError(
                f"{folder}: this node's key is not in {config.federation}; the federation was "
                "created without its card. To ask for a place: defl node join --help"
            )
        observing = LOST if observer else None
        if observing is None and not has_birth(folder, identity.public_key):
            observing = WITHOUT_BIRTH
        initial = (folder / config.federation).parent / INITIAL_FILE
        _create_state(state, agreement, identity, initial, observing)
    elif observer:
        with Storage.open(state, chain=agreement.federation.chain) as storage:
            storage.records.observe("it was started with --observer")
    consume_birth(folder)
    _mark_started(started)
    node = Node(folder, config, agreement, identity, log)
    for note in node.storage.notes:
        log.warning("state folder closed to other users", what=note)
    if unset := unset_names(config.client_environment, os.environ):
        log.warning("variables of client_environment are not set", names=",".join(unset))
    node.learn(lineage_handovers(folder, agreement.federation))
    for path, card in read_newer_cards(folder).items():
        if node.transport.update_card(card):
            log.info("a member's newer card is used", card=path.name)
    return node


def _mark_started(started: Path) -> None:
    """After the state is complete, so that a crash before costs nothing, and before anything is
    signed, so that nothing signed is forgotten."""
    if not started.exists():
        with disk_faults(f"write {started}"):
            started.touch(mode=0o600)
            sync_folder(started.parent)


def _create_state(
    state: Path,
    agreement: Agreement,
    identity: Identity,
    initial: Path,
    observing: str | None,
) -> None:
    """A founder holds the initial weights. Who joins later needs none, and may have none."""
    federation = agreement.federation
    founder = agreement.member(identity.public_key) is not None
    weights = read_initial(initial, federation) if founder or initial.exists() else None
    Storage.create(state, federation, weights, observing=observing)
