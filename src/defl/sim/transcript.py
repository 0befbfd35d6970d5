"""A simulated conversation as lines that a person can read."""

from collections.abc import Callable

import msgspec

from defl.ids import NodeId
from defl.messages import (
    Block,
    BlockRequest,
    Blocks,
    Certificates,
    Chunk,
    Gossip,
    Message,
    Offer,
    Proposal,
    Snapshot,
    Status,
    StoreAck,
    Timeout,
    Transaction,
    Upd,
    Vote,
)
from defl.output import Notice


def short(data: bytes) -> str:
    return data[:4].hex()


def _transaction(tx: Transaction) -> str:
    if isinstance(tx, Upd):
        return f"UPD(round {tx.round}, author {tx.author}, blob {short(tx.digest)})"
    return f"AGG(round {tx.round}, author {tx.author})"


def _block(block: Block) -> str:
    header = block.header
    by_tc = f", TC {header.tc.view}" if header.tc is not None else ""
    inside = "; ".join(_transaction(tx) for tx in block.transactions)
    return (
        f"block {short(block.id)} view {header.view} height {header.height} on "
        f"{short(header.parent)} (QC {header.qc.view}{by_tc}) [{inside}]"
    )


def described(message: Message) -> str:
    match message:
        case Proposal(block=block):
            summary = _block(block)
        case Vote(view=view, block=block_id):
            summary = f"view {view} block {short(block_id)}"
        case Timeout(view=view, high_qc=qc):
            summary = f"view {view}, high QC {qc.view}"
        case Certificates(qc=qc, tc=tc):
            summary = f"QC {qc.view}" + (f", TC {tc.view}" if tc is not None else "")
        case Status(view=view, high_qc_view=high):
            summary = f"view {view}, high QC {high}"
        case Gossip(transactions=transactions):
            summary = "; ".join(_transaction(tx) for tx in transactions)
        case BlockRequest(block=block_id, height=height):
            summary = f"block {short(block_id)} above height {height}"
        case Blocks(blocks=blocks):
            summary = "; ".join(_block(block) for block in blocks)
        case Snapshot(block=header, proof=proof):
            summary = f"state after height {header.height}, proven by view {proof.view}"
        case Offer(round=round_, author=author, manifest=manifest):
            summary = f"round {round_} of {author}: blob {short(manifest.digest)}"
        case StoreAck(round=round_, author=author, digest=digest):
            summary = f"round {round_} of {author}: blob {short(digest)}"
        case Chunk(digest=digest, index=index, data=data):
            summary = f"{index} of blob {short(digest)}, {len(data)} bytes"
        case _:
            summary = _fields(message)
    return f"{type(message).__name__} {summary}"


def _fields(value: msgspec.Struct) -> str:
    shown = []
    for name in value.__struct_fields__:
        field = getattr(value, name)
        shown.append(f"{name} {short(field) if isinstance(field, bytes) else _plain(field)}")
    return ", ".join(shown)


def _plain(field: object) -> str:
    if isinstance(field, msgspec.Struct):
        return f"({type(field).__name__})"
    if isinstance(field, tuple) and field and isinstance(field[0], msgspec.Struct):
        return f"({len(field)} x {type(field[0]).__name__})"
    return str(field)


class Transcript:
    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def message(self, now: float, source: NodeId, target: NodeId, message: Message) -> None:
        self._write(f"{now:10.4f}  {source} -> {target}  {described(message)}\n")

    def notice(self, now: float, node: NodeId, notice: Notice) -> None:
        self._write(f"{now:10.4f}  {node}  ** {type(notice).__name__} {_fields(notice)}\n")

    def text(self, now: float, node: NodeId, text: str) -> None:
        self._write(f"{now:10.4f}  {node}  ** {text}\n")
