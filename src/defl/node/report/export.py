"""A node's model in the form that somebody else's program reads."""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from defl.aggregation.memory import ENTRY
from defl.clients.state_dict import write_state_dict
from defl.errors import UserError
from defl.node.report.certificate import read_certificate, verify_model
from defl.node.report.model_file import read_model
from defl.node.report.results import CERTIFICATE, MODEL, PROVEN
from defl.node.setup.config import read_federation, read_node
from defl.node.setup.requirements import Check
from defl.node.store.storage import Storage
from defl.schema import Array
from defl.work import model_row


@dataclass(frozen=True, slots=True)
class ExportedModel:
    arrays: Mapping[str, Array]
    metadata: dict[str, str]  # as a node writes it: round and digest


Write = Callable[[Path, ExportedModel], None]


def _safetensors(path: Path, model: ExportedModel) -> None:
    save_file(_own(model), path, metadata=model.metadata)


def _own(model: ExportedModel) -> dict[str, Array]:
    """Without what the aggregation rule remembers, which no other program knows."""
    return {name: array for name, array in model.arrays.items() if name != ENTRY}


def _npz(path: Path, model: ExportedModel) -> None:
    with path.open("wb") as file:
        np.savez(file, **_own(model))  # type: ignore[arg-type]


def _state_dict(path: Path, model: ExportedModel) -> None:
    write_state_dict(path, _own(model))


WRITERS: dict[str, Write] = {
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".pt": _state_dict,
    ".pth": _state_dict,
}


def kept_model(source: Path, round_: int | None) -> ExportedModel:
    """Of a node's folder, its newest or one that it keeps; or of a model's file."""
    if not source.is_dir():
        return _of_round(ExportedModel(*read_model(source)), source, round_)
    config = read_node(source)
    newest = source / MODEL
    if not newest.exists():
        raise UserError(f"{source}: this node has no model yet; its first round has not closed")
    model = ExportedModel(*read_model(newest))
    if round_ is None or model.metadata.get("round") == str(round_):
        return model
    federation = read_federation(source / config.federation).federation
    with Storage.open(source / config.state, chain=federation.chain) as storage:
        kept = {int(number): manifest for number, manifest in storage.recovered().models}
        if round_ not in kept:
            rounds = ", ".join(str(number) for number in sorted(kept))
            raise UserError(f"{source}: of round {round_} no model is kept; there are: {rounds}")
        digest = kept[round_].digest
        row = model_row(federation, storage.blobs.read(digest)).copy()
    return ExportedModel(
        federation.schema.unflatten(row), {"round": str(round_), "digest": digest.hex()}
    )


def _of_round(model: ExportedModel, path: Path, round_: int | None) -> ExportedModel:
    found = model.metadata.get("round")
    if round_ is not None and found != str(round_):
        raise UserError(f"{path}: the model of round {found}, not {round_}; name a node's folder")
    return model


def proven_model(
    source: Path, certificate: Path | None, federation: Path | None
) -> tuple[ExportedModel, list[Check]]:
    """The model and whether a quorum vouches for it; a node's folder holds all that is needed."""
    if source.is_dir():
        agreed = source / read_node(source).federation
        model, proof = source / PROVEN, source / CERTIFICATE
        if not model.exists():
            raise UserError(f"{source}: no model is proven yet; the next round's close proves one")
    else:
        if certificate is None or federation is None:
            raise UserError(
                "to check a model's file, name its round certificate and the federation's file: "
                "--certificate FILE --federation FILE"
            )
        model, proof, agreed = source, certificate, federation
    vouching = read_certificate(proof)
    arrays, metadata = read_model(model)  # once: what is verified is what is written
    checks = verify_model(
        read_federation(federation or agreed).federation, arrays, metadata, vouching
    )
    proven = {**metadata, "round": str(vouching.round), "digest": vouching.digest}
    return ExportedModel(arrays, proven), checks


def write_export(path: Path, model: ExportedModel, *, force: bool) -> None:
    """In place at once, and never over a file that nobody gave up."""
    if path.suffix not in WRITERS:
        raise UserError(f"{path}: the name decides the format; it ends in {', '.join(WRITERS)}")
    if path.exists() and not force:
        raise UserError(f"{path} exists; choose another name, or overwrite it with --force")
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: no such folder; make it first")
    try:
        # The folder may be one that others write into, such as /tmp: a new file of a name that
        # nobody can guess, so that no link of theirs is followed.
        descriptor, name = tempfile.mkstemp(path.suffix, ".defl-export-", path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    os.close(descriptor)
    beside = Path(name)
    try:
        WRITERS[path.suffix](beside, model)
        _finish(beside)
        os.replace(beside, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    except SafetensorError as error:  # its writer's only way to say that the disk is full
        raise UserError(f"{path}: cannot be written: {error}") from error
    finally:
        beside.unlink(missing_ok=True)


def _finish(path: Path) -> None:
    """For others to read, and on the disk; opened anew, since a writer may have replaced it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, 0o644)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def described(model: ExportedModel) -> Mapping[str, str]:
    return {name: f"{array.dtype} {list(array.shape)}" for name, array in model.arrays.items()}
