"""Opening the node of a folder: its settings, its key, the federation, and its state on disk.

The state is created at the first start and never again: a node that lost it has forgotten what it
signed, and may only observe.
"""

from pathlib import Path

from defl.errors import UserError
from defl.node.files import NEWER_CARDS, STARTED_FILE
from defl.node.node import Node
from defl.node.report.log import Log
from defl.node.setup.config import (
    INITIAL_FILE,
    Agreement,
    read_card_file,
    read_federation,
    read_identity,
    read_node,
)
from defl.node.setup.initial import read_initial
from defl.node.store.disk import disk_faults, sync_folder
from defl.node.store.records import DATABASE
from defl.node.store.storage import Storage


def open_node(folder: Path, log: Log, *, observer: bool = False) -> Node:
    config = read_node(folder)
    agreement = read_federation(folder / config.federation)
    identity = read_identity(folder, config.name)
    if agreement.member(identity.public_key) is None:
        raise UserError(
            f"{folder}: this node's key is not in {config.federation}; the federation was created "
            "without its card"
        )
    state, started = folder / config.state, folder / STARTED_FILE
    if not Storage.exists(state):
        if (started.exists() or Storage.was_used(state)) and not observer:
            raise UserError(
                f"{state / DATABASE} is gone, and with it the record of what this node signed: "
                "restore the same folder, never an older copy, or follow without signing: defl "
                f"node start --observer {folder}"
            )
        initial = (folder / config.federation).parent / INITIAL_FILE
        _create_state(state, agreement, initial, observer=observer)
    elif observer:
        with Storage.open(state, chain=agreement.federation.chain) as storage:
            storage.records.observe("it was started with --observer")
    _mark_started(started)
    node = Node(folder, config, agreement, identity, log)
    for path in sorted(folder.glob(NEWER_CARDS)):
        if node.transport.update_card(read_card_file(path)):
            log.info("a member's newer card is used", card=path.name)
    return node


def _mark_started(started: Path) -> None:
    """After the state is complete, so that a crash before costs nothing, and before anything is
    signed, so that nothing signed is forgotten."""
    if not started.exists():
        with disk_faults(f"write {started}"):
            started.touch(mode=0o600)
            sync_folder(started.parent)


def _create_state(state: Path, agreement: Agreement, initial: Path, *, observer: bool) -> None:
    federation = agreement.federation
    manifest, payload = read_initial(initial, federation)
    Storage.create(state, federation, manifest, payload, observer=observer)
