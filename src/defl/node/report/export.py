"""A node's model in a format that other programs read: complete, or refused.

A node's folder gives every entry of the model: the shared ones, and this node's own values of the
local ones. What the aggregation rule remembers is not part of the model and is left out.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from defl.aggregation.memory import ENTRY
from defl.clients.state_dict import write_state_dict
from defl.committee import Federation
from defl.crypto import Ed25519Scheme
from defl.errors import BrokenLineage, UserError
from defl.lineage import federations_of
from defl.node.report.archive import Archive
from defl.node.report.best_model import BEST, BEST_CERTIFICATE, BEST_LOCAL
from defl.node.report.certificate import read_certificate, verify_model
from defl.node.report.model_file import (
    LOCAL_ENTRIES,
    read_metadata,
    read_model,
    write_safetensors,
)
from defl.node.report.results import CERTIFICATE, MODEL, PROVEN
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import NodeConfig, read_node
from defl.node.setup.requirements import Check
from defl.node.store.storage import Storage
from defl.node.work.local_entries import LOCAL_FILE, local_names, read_local
from defl.schema import Array
from defl.work import model_row

RoundChoice = int | Literal["best"] | None  # None: the newest


@dataclass(frozen=True, slots=True)
class ExportedModel:
    arrays: Mapping[str, Array]  # without the aggregation rule's memory
    metadata: dict[str, str]  # as a node writes it: round, and digest of the shared entries
    local: tuple[str, ...] = ()  # which entries are this node's own


Write = Callable[[Path, ExportedModel], None]


def _safetensors(path: Path, model: ExportedModel) -> None:
    write_safetensors(path, model.arrays, model.metadata)


def _npz(path: Path, model: ExportedModel) -> None:
    with path.open("wb") as file:
        np.savez(file, **model.arrays)  # type: ignore[arg-type]


def _state_dict(path: Path, model: ExportedModel) -> None:
    write_state_dict(path, model.arrays)


WRITERS: dict[str, Write] = {
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".pt": _state_dict,
    ".pth": _state_dict,
}


# --- What a node's folder holds ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _KeptModel:
    """A model's files in a node's folder."""

    model: Path
    certificate: Path  # there once the round is proven
    local: Path


class _NodeFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: NodeConfig = read_node(folder)
        self.federation: Federation = read_federation(folder / self.config.federation).federation
        local = self.state / LOCAL_FILE
        self.newest = _KeptModel(folder / MODEL, folder / CERTIFICATE, local)
        self.proven = _KeptModel(folder / PROVEN, folder / CERTIFICATE, local)
        self.best = _KeptModel(folder / BEST, folder / BEST_CERTIFICATE, folder / BEST_LOCAL)

    @property
    def state(self) -> Path:
        return self.folder / self.config.state

    def kept(self, round_: RoundChoice) -> _KeptModel | None:
        """The files of this round; None: only the state may hold it."""
        if round_ == "best":
            return self._best()
        if not self.newest.model.exists():
            raise UserError(
                f"{self.folder}: this node has no model yet; its first round has not closed"
            )
        return self._of_round((self.newest, self.proven, self.best), round_)

    def certified(self, round_: RoundChoice) -> _KeptModel:
        kept = (
            self._best() if round_ == "best" else self._of_round((self.proven, self.best), round_)
        )
        if kept is None:
            raise UserError(
                f"{self.folder}: no certificate of round {round_} is kept, only those of the "
                "newest proven round and of the best one; leave --round out, or --check"
            )
        if not (kept.model.exists() and kept.certificate.exists()):
            raise UserError(
                f"{self.folder}: this model is not proven yet: the next round's close proves it; "
                "export it without --check, or later"
            )
        return kept

    def _of_round(
        self, candidates: tuple[_KeptModel, ...], round_: RoundChoice
    ) -> _KeptModel | None:
        if round_ is None:
            return candidates[0]
        for kept in candidates:
            if kept.model.exists() and read_metadata(kept.model).get("round") == str(round_):
                return kept
        return None

    def _best(self) -> _KeptModel:
        if self.best.model.exists():
            return self.best
        if not self.config.keep_best:
            raise UserError(
                f"{self.folder}: this node keeps no best model; name the metric that decides in "
                'its node.toml, for example keep_best = "accuracy" or "-loss", and restart it'
            )
        raise UserError(
            f"{self.folder}: there is no best model yet: no evaluation has returned "
            f"{self.config.keep_best.removeprefix('-')!r}; node.log has what it returned"
        )

    def from_storage(self, round_: RoundChoice) -> tuple[Mapping[str, Array], dict[str, str]]:
        with Storage.open(self.state, chain=self.federation.chain) as storage:
            kept = {int(number): manifest for number, manifest in storage.recovered().models}
            if round_ not in kept:
                rounds = ", ".join(str(number) for number in sorted(kept))
                raise UserError(
                    f"{self.folder}: the model of round {round_} is not kept; there are: {rounds}"
                )
            digest = kept[round_].digest
            row = model_row(self.federation, storage.blobs.read(digest)).copy()
        metadata = {"round": str(round_), "digest": digest.hex()}
        return self.federation.schema.unflatten(row), metadata

    def complete(
        self,
        arrays: Mapping[str, Array],
        metadata: Mapping[str, str],
        local: Path,
        *,
        shared_only: bool,
    ) -> ExportedModel:
        """With this node's local entries, in the schema's order."""
        schema = self.federation.schema
        names = () if shared_only else tuple(local_names(schema))
        values = read_local(local, schema) if names else {}
        if names and not values:
            raise UserError(
                f"{self.folder}: the model has {len(names)} entries that stay local, {names[0]!r} "
                "for one, and this node has no values for them: it has never trained; export from "
                "a node that trains, or the shared entries alone with --shared-only"
            )
        whole = {**arrays, **values}
        ordered = {e.name: whole[e.name] for e in schema.entries if e.name in whole}
        return _exported(ordered, metadata, names)


def _exported(
    arrays: Mapping[str, Array], metadata: Mapping[str, str], local: tuple[str, ...] = ()
) -> ExportedModel:
    own = {name: array for name, array in arrays.items() if name != ENTRY}
    kept = {key: text for key, text in metadata.items() if not (local and key == LOCAL_ENTRIES)}
    return ExportedModel(own, kept, local)


# --- Choosing a model ----------------------------------------------------------------------------


def kept_model(
    source: Path, round_: RoundChoice = None, *, shared_only: bool = False
) -> ExportedModel:
    """A node's newest model, one of an earlier round that it keeps, or a model's file."""
    if not source.is_dir():
        arrays, metadata = read_model(source)
        _require_round(source, metadata, round_)
        _require_complete(source, metadata, shared_only=shared_only)
        return _exported(arrays, metadata)
    node = _NodeFolder(source)
    kept = node.kept(round_)
    if kept is not None:
        return node.complete(*read_model(kept.model), kept.local, shared_only=shared_only)
    return node.complete(*node.from_storage(round_), node.newest.local, shared_only=shared_only)


def proven_model(
    source: Path,
    certificate: Path | None = None,
    federation: Path | None = None,
    round_: RoundChoice = None,
    *,
    shared_only: bool = False,
) -> tuple[ExportedModel, list[Check]]:
    """The model, and whether a quorum vouches for it; a node's folder holds all that is needed.

    The proof covers the shared entries; only this node vouches for the local ones.
    """
    if source.is_dir():
        node = _NodeFolder(source)
        kept = node.certified(round_)
        model, proof = kept.model, kept.certificate
        agreed = node.federation if federation is None else read_federation(federation).federation
        handovers = tuple(Archive(source).handovers())
    else:
        if certificate is None or federation is None:
            raise UserError(
                "to check a model's file, name its round certificate and the federation's file: "
                "--certificate FILE --federation FILE"
            )
        model, proof, agreed = source, certificate, read_federation(federation).federation
        handovers = ()
    vouching = read_certificate(proof)
    arrays, metadata = read_model(model)  # once: what is verified is what is written
    try:
        federations = federations_of(agreed, handovers[: vouching.epoch], Ed25519Scheme())
    except BrokenLineage as broken:
        raise UserError(f"{source}: its handovers are not proven: {broken}") from broken
    checks = verify_model(federations, arrays, metadata, vouching)
    proven = {**metadata, "round": str(vouching.round), "digest": vouching.digest}
    if source.is_dir():
        return node.complete(arrays, proven, kept.local, shared_only=shared_only), checks
    _require_round(source, proven, round_)
    _require_complete(source, metadata, shared_only=shared_only)
    return _exported(arrays, proven), checks


def _require_round(path: Path, metadata: Mapping[str, str], round_: RoundChoice) -> None:
    actual = metadata.get("round")
    if round_ is not None and actual != str(round_):
        raise UserError(f"{path}: the model of round {actual}, not {round_}; name a node's folder")


def _require_complete(path: Path, metadata: Mapping[str, str], *, shared_only: bool) -> None:
    missing = metadata.get(LOCAL_ENTRIES)
    if missing is not None and not shared_only:
        raise UserError(
            f"{path} holds the shared entries alone; the model has {missing} more that stay local: "
            "name a node's folder, or export the shared entries with --shared-only"
        )


# --- Writing -------------------------------------------------------------------------------------


def write_export(path: Path, model: ExportedModel, *, force: bool) -> None:
    """Write atomically, and never over an existing file unless forced."""
    if path.suffix not in WRITERS:
        raise UserError(f"{path}: the name decides the format; it ends in {', '.join(WRITERS)}")
    write_whole(path, lambda temporary: WRITERS[path.suffix](temporary, model), force=force)


def write_whole(path: Path, write: Callable[[Path], object], *, force: bool) -> None:
    """`write` fills a temporary file, which then takes its place."""
    if path.exists() and not force:
        raise UserError(f"{path} exists; choose another name, or overwrite it with --force")
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: no such folder; make it first")
    try:
        # Others may write into the folder, as into /tmp: an unpredictable name, so that no link
        # that they planted is followed.
        descriptor, name = tempfile.mkstemp(path.suffix, ".defl-export-", path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    os.close(descriptor)
    temporary = Path(name)
    try:
        write(temporary)
        _finish(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _finish(path: Path) -> None:
    """Make it readable for others and durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, 0o644)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def described(model: ExportedModel) -> Mapping[str, str]:
    return {name: f"{array.dtype} {list(array.shape)}" for name, array in model.arrays.items()}
