"""The facts of the epoch that a node is in: from the running node, or from its state on disk."""

from pathlib import Path

from defl.committee import Federation
from defl.node.report.status_client import running_membership
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import read_node
from defl.node.store.storage import Storage
from defl.participant_parts import present_epoch


def present_facts(folder: Path) -> Federation:
    """Those that a node which has never run starts with are in its federation file."""
    config = read_node(folder)
    origin = read_federation(folder / config.federation).federation
    report = running_membership(folder)
    if report is not None:
        return Federation(origin.charter, report.membership)
    state = folder / config.state
    if not Storage.exists(state):
        return origin
    with Storage.open(state, chain=origin.chain) as storage:
        return present_epoch(origin, storage.records.recovered())
