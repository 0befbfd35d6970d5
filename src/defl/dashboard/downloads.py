"""The files of a node that a viewer may have, and the command that verifies a round's.

Read-only, and no lock is taken: the node may run, write and delete meanwhile. A name is matched
against exact patterns; no path is ever made from the text of a request.
"""

import io
import os
import re
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, NamedTuple
from urllib.parse import quote

from defl.committee import Federation
from defl.dashboard.source import Download
from defl.dashboard.view import FileView
from defl.errors import DeflError
from defl.node.report.archive import ARCHIVE, Archive
from defl.node.report.best_model import BEST
from defl.node.report.certificate import (
    CERTIFICATE_BYTES_MAX,
    RoundCertificate,
    read_certificate,
)
from defl.node.report.evidence_file import EVIDENCE, EVIDENCE_BYTES_MAX
from defl.node.report.lineage_file import kept_lineage, lineage_bytes
from defl.node.report.model_file import model_digest, read_metadata, write_model
from defl.node.report.results import MODEL, PROVEN
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import read_node
from defl.node.setup.typed_toml import FILE_BYTES_MAX, read_bytes
from defl.node.store.storage import BLOBS
from defl.work import model_row

FEDERATION = "federation.toml"
LINEAGE = "lineage.json"

_NUMBER = "(?P<number>0|[1-9][0-9]{0,17})"
_MODEL_NAME = re.compile(rf"round-{_NUMBER}\.safetensors", re.ASCII)
_CERTIFICATE_NAME = re.compile(rf"round-{_NUMBER}-certificate\.json", re.ASCII)
_EVIDENCE_NAME = re.compile(r"evidence-[\w.-]{1,200}\.json", re.ASCII)


class RoundFiles(NamedTuple):
    files: list[FileView]
    verify: str  # the command; empty: nothing to verify, or the model is not kept any more


def file_href(node: str, file: str) -> str:
    return f"/files/{quote(node, safe='')}/{quote(file, safe='')}"


class NodeFiles:
    """`name`: the node's, as it stands in addresses."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    def of_round(self, number: int) -> RoundFiles:
        """What there is of a proven round; nothing of any other."""
        certificate = self._certificate(number)
        if certificate is None:
            return RoundFiles([], "")
        names = [f"round-{number}-certificate.json", FEDERATION]
        sizes: list[int | None] = [
            _size(self._certificate_path(number)),
            _size(self._federation_path()),
        ]
        lineage = ""
        if certificate.epoch > 0:
            names.append(LINEAGE)
            sizes.append(None)
            lineage = f" --lineage {LINEAGE}"
        verify = ""
        model = self._model_file(certificate)
        if model is not None or self._blob_path(certificate).is_file():
            names.insert(0, f"round-{number}.safetensors")
            sizes.insert(0, _size(model) if model is not None else None)
            verify = f"defl verify {' '.join(names[:3])}{lineage}"
        files = [
            FileView(name, file_href(self._name, name), size)
            for name, size in zip(names, sizes, strict=True)
        ]
        return RoundFiles(files, verify)

    def open(self, name: str) -> Download | None:
        """The file of this name; None: there is none, or not any more."""
        with suppress(OSError, DeflError):
            if match := _MODEL_NAME.fullmatch(name):
                return self._model(name, int(match["number"]))
            if match := _CERTIFICATE_NAME.fullmatch(name):
                path = self._certificate_path(int(match["number"]))
                return _in_memory(name, read_bytes(path, "", CERTIFICATE_BYTES_MAX))
            if name == FEDERATION:
                return _in_memory(name, read_bytes(self._federation_path(), "", FILE_BYTES_MAX))
            if name == LINEAGE and next(Archive(self._folder).handovers(), None) is not None:
                return _in_memory(name, lineage_bytes(kept_lineage(self._folder)))
            if _EVIDENCE_NAME.fullmatch(name):
                return self._evidence(name)
        return None

    # --- Paths, made of constants and numbers ---------------------------------------------------

    def _certificate_path(self, number: int) -> Path:
        return self._folder / ARCHIVE / f"round-{number}.json"

    def _federation_path(self) -> Path:
        return self._folder / read_node(self._folder).federation

    def _blob_path(self, certificate: RoundCertificate) -> Path:
        state = self._folder / read_node(self._folder).state
        return state / BLOBS / f"{certificate.digest}.blob"

    def _certificate(self, number: int) -> RoundCertificate | None:
        try:
            certificate = read_certificate(self._certificate_path(number))
        except DeflError:
            return None
        return certificate if certificate.round == number else None

    # --- Models ---------------------------------------------------------------------------------

    def _model(self, name: str, number: int) -> Download | None:
        certificate = self._certificate(number)
        if certificate is None:
            return None
        path = self._model_file(certificate)
        if path is not None:
            file = path.open("rb")
            # The node may have put another round's model there since it was looked at.
            if _is_certified(_opened_path(file), certificate):
                return Download(name, file, os.fstat(file.fileno()).st_size)
            file.close()
        return self._model_from_blob(name, certificate)

    def _model_file(self, certificate: RoundCertificate) -> Path | None:
        paths = (self._folder / file for file in (PROVEN, MODEL, BEST))
        return next((path for path in paths if _is_certified(path, certificate)), None)

    def _model_from_blob(self, name: str, certificate: RoundCertificate) -> Download | None:
        """The node overwrites files of blobs that it has dropped: the digest is checked after the
        bytes were copied."""
        federation: Federation = read_federation(self._federation_path()).federation
        payload = self._blob_path(certificate).read_bytes()
        if len(payload) != 4 * federation.schema.values:
            return None
        row = model_row(federation, payload)
        if model_digest(federation, row).hex() != certificate.digest:
            return None
        metadata = {"round": str(certificate.round), "digest": certificate.digest}
        with TemporaryDirectory(prefix="defl-download-") as folder:
            path = Path(folder) / MODEL
            write_model(path, federation.schema, row, metadata)
            file = path.open("rb")  # stays readable after the deletion
        return Download(name, file, os.fstat(file.fileno()).st_size)

    def _evidence(self, name: str) -> Download | None:
        folder = self._folder / EVIDENCE
        for path in folder.iterdir():
            if path.name == name:
                return _in_memory(name, read_bytes(path, "", EVIDENCE_BYTES_MAX))
        return None


def _is_certified(path: Path, certificate: RoundCertificate) -> bool:
    if not path.is_file():
        return False
    try:
        metadata = read_metadata(path)
    except DeflError:
        return False
    return (metadata.get("round"), metadata.get("digest")) == (
        str(certificate.round),
        certificate.digest,
    )


def _opened_path(file: BinaryIO) -> Path:
    return Path(f"/proc/self/fd/{file.fileno()}")


def _in_memory(name: str, data: bytes) -> Download:
    return Download(name, io.BytesIO(data), len(data))


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
