"""The proofs that a node keeps for ever: round certificates, handovers, and states of the ledger.

One small file each, in a folder beside the node's models, so that a certificate can be handed on
as it is and a damaged file costs one round. A file is written once, whole or not at all.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from defl.errors import Malformed, UserError
from defl.fields import MEMBERS_MAX
from defl.ledger import decode_state
from defl.messages import Handover, Snapshot
from defl.node.report.certificate import RoundCertificate, read_certificate
from defl.node.setup.typed_toml import read_bytes
from defl.wire import control_frame_bytes_max, decode, encode

ARCHIVE = "certificates"
FRAME_BYTES_MAX = control_frame_bytes_max(MEMBERS_MAX)

_NAME = re.compile(r"(?P<kind>round|handover|state)-(?P<number>0|[1-9][0-9]{0,17})\.(json|defl)")


class Archive:
    def __init__(self, folder: Path) -> None:
        """`folder`: the node's."""
        self.folder = folder / ARCHIVE

    def keep_certificate(self, round_: int, text: str) -> None:
        self._write(f"round-{round_}.json", text.encode())

    def keep_handover(self, handover: Handover) -> None:
        self._write(f"handover-{handover.epoch}.defl", encode(handover))

    def keep_state(self, snapshot: Snapshot) -> None:
        """One for each round that is the newest when a node looks; each shows the last tau."""
        newest = decode_state(snapshot.state).round
        if newest > 0:
            self._write(f"state-{newest}.defl", encode(snapshot, snapshot.block.epoch))

    def certificates(self) -> Iterator[RoundCertificate]:
        """Of all rounds that are kept, in their order."""
        for round_ in self._numbers("round"):
            path = self.folder / f"round-{round_}.json"
            certificate = read_certificate(path)
            if certificate.round != round_:
                raise UserError(f"{path}: the certificate of round {certificate.round}")
            yield certificate

    def handovers(self) -> Iterator[Handover]:
        """Of all epochs that have ended and are kept, in their order."""
        for epoch in self._numbers("handover"):
            yield _read(self.folder / f"handover-{epoch}.defl", Handover)

    def states(self) -> Iterator[Snapshot]:
        for round_ in self._numbers("state"):
            yield _read(self.folder / f"state-{round_}.defl", Snapshot)

    def _numbers(self, kind: str) -> list[int]:
        """The rounds or epochs of all files of this kind, sorted."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        found = (_NAME.fullmatch(name) for name in names)
        return sorted(int(match["number"]) for match in found if match and match["kind"] == kind)

    def _write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        if path.exists():
            return  # a restarted node hears of the newest rounds again
        self.folder.mkdir(mode=0o755, exist_ok=True)
        temporary = self.folder / f".{name}.writing"
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


T = TypeVar("T", Handover, Snapshot)


def _read(path: Path, kind: type[T]) -> T:
    data = read_bytes(path, "a node writes it", FRAME_BYTES_MAX)
    try:
        message = decode(data, FRAME_BYTES_MAX)
    except Malformed as error:
        raise UserError(f"{path}: damaged: {error}") from error
    if not isinstance(message, kind):
        raise UserError(f"{path}: not a {kind.__name__} but a {type(message).__name__}")
    return message
