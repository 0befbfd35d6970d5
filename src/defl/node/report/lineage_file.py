"""The lineage: one file that proves every round of a federation's life to anyone, offline.

It is JSON with one canonical form: the text of the file that the members agreed on at first, a
handover from each epoch to the next, each round's certificate, and signed states of the ledger.
`lineage_proof.py` checks it.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from defl.errors import UserError
from defl.ledger import decode_state
from defl.messages import Handover, Snapshot
from defl.node.report.archive import Archive
from defl.node.report.certificate import RoundCertificate
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import read_node
from defl.node.setup.typed_toml import FILE_BYTES_MAX, read_bytes

LINEAGE_FORMAT: Literal["defl-lineage-1"] = "defl-lineage-1"
# A round takes 3 KB among 4 members and 60 KB among 100: room for 8,000 rounds of those.
LINEAGE_BYTES_MAX = 2**29


class Lineage(Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["defl-lineage-1"]
    origin: Annotated[str, Meta(max_length=FILE_BYTES_MAX)]  # the text of federation.toml
    handovers: tuple[Handover, ...]  # from epoch 0 on
    certificates: tuple[RoundCertificate, ...]  # from round 0 on, the initial model's
    states: tuple[Snapshot, ...] = ()  # who took part in a round and, so, who did not


def read_lineage(path: Path) -> Lineage:
    hint = "a node's folder has what it takes: defl export FOLDER lineage.json --lineage"
    data = read_bytes(path, hint, LINEAGE_BYTES_MAX)
    try:
        lineage = msgspec.json.decode(data, type=Lineage)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: not a lineage: {error}; get the file again") from error
    if lineage_bytes(lineage) != data:
        raise UserError(f"{path}: a lineage that was written differently; get the file again")
    return lineage


def lineage_bytes(lineage: Lineage) -> bytes:
    return msgspec.json.encode(lineage) + b"\n"


def kept_lineage(folder: Path, other: Lineage | None = None) -> Lineage:
    """All that a node's folder holds; `other`: another member's, for rounds that it missed."""
    agreement = read_federation(folder / read_node(folder).federation)
    archive = Archive(folder)
    handovers = {handover.epoch: handover for handover in archive.handovers()}
    certificates = {certificate.round: certificate for certificate in archive.certificates()}
    states = {_place(state): state for state in _needed(list(archive.states()))}
    if not certificates:
        raise UserError(f"{folder}: this node has no round certificate yet; try after a round")
    if other is not None:
        handovers = {**{handover.epoch: handover for handover in other.handovers}, **handovers}
        certificates = {**{theirs.round: theirs for theirs in other.certificates}, **certificates}
        states = {**{_place(state): state for state in other.states}, **states}
    return Lineage(
        LINEAGE_FORMAT,
        agreement.text.decode(),
        tuple(handovers[epoch] for epoch in sorted(handovers)),
        tuple(certificates[round_] for round_ in sorted(certificates)),
        tuple(states[place] for place in sorted(states)),
    )


def _needed(states: list[Snapshot]) -> tuple[Snapshot, ...]:
    """Without those whose rounds later ones show too."""
    needed: list[Snapshot] = []
    shown: set[int] = set()
    for state in reversed(states):
        try:
            rounds = {closed.round for closed in decode_state(state.state).closed}
        except msgspec.MsgspecError:
            continue  # damaged on disk: the lineage goes without it
        if max(rounds, default=0) not in shown:
            needed.append(state)
            shown |= rounds
    return tuple(reversed(needed))


def _place(state: Snapshot) -> tuple[int, int]:
    return state.block.epoch, state.block.height
