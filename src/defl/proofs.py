"""`defl.verify` and `defl.load_model`: a model's files, checked without a node and offline."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from defl.aggregation.memory import ENTRY
from defl.committee import Federation
from defl.errors import UserError, WeightsError
from defl.node.report.certificate import read_certificate, verify_model
from defl.node.report.model_file import model_digest, read_model, row_of
from defl.node.report.results import MODEL
from defl.node.setup.config import CONFIG_FILE, read_federation, read_node
from defl.node.setup.requirements import Check, all_hold
from defl.node.work.local_entries import LOCAL_FILE, local_names, read_local
from defl.schema import Array, Role, Schema


@dataclass(frozen=True, slots=True)
class ModelProof:
    """Whether a quorum vouches for a model; true in a condition if and only if it does."""

    round: int  # of the certificate
    digest: str  # of the certified model, in hex
    checks: tuple[Check, ...]  # each with its observation, and with advice if it fails

    @property
    def proven(self) -> bool:
        return all_hold(self.checks)

    def __bool__(self) -> bool:
        return self.proven

    def __str__(self) -> str:
        verdict = "proven" if self.proven else "NOT PROVEN: do not use this model"
        return "\n".join([*(check.line for check in self.checks), "", verdict])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def as_json(self) -> dict[str, Any]:
        return {"proven": self.proven, "checks": [check.json for check in self.checks]}


def verify(model: str | Path, certificate: str | Path, federation: str | Path) -> ModelProof:
    """Do enough members of the federation vouch for exactly this model?

    All three are files as a node writes and uses them: a .safetensors model, its round certificate
    and federation.toml. No network and no node is needed. A file that is missing or cannot be read
    is a UserError; a model that is not proven is an answer, and each check says why.
    """
    agreed = read_federation(Path(federation)).federation
    statement = read_certificate(Path(certificate))
    checks = verify_model(agreed, *read_model(Path(model)), statement)
    return ModelProof(statement.round, statement.digest, tuple(checks))


def load_model(
    source: str | Path, *, federation: str | Path | None = None, shared_only: bool = False
) -> dict[str, Array]:
    """The arrays of a model by name, after checking them against the digest that the file states.

    `source` is a node's folder, whose newest model is loaded, or a model file. For a file outside a
    node's folder, `federation` names the agreed federation.toml. Local entries have the node's own
    values, which only its folder holds; `shared_only` leaves them out. The aggregation rule's
    memory is not among the arrays. To check who vouches for the model, use `defl.verify`.
    """
    path = Path(source)
    if path.is_dir():
        path, folder = path / MODEL, path
        if not path.exists():
            read_node(folder)  # its error explains why the folder is not a node's
            raise UserError(f"{folder}: this node has no model yet; its first round has not closed")
    arrays, metadata = read_model(path)
    agreed = read_federation(_federation_of(path, federation)).federation
    _check_digest(path, agreed, arrays, metadata)
    local = {} if shared_only else _local_entries(Path(source), agreed.schema)
    whole = {**arrays, **local}
    entries = (entry for entry in agreed.schema.entries if entry.role is not Role.MEMORY)
    return {entry.name: whole[entry.name] for entry in entries if entry.name in whole}


def _local_entries(source: Path, schema: Schema) -> dict[str, Array]:
    names = local_names(schema)
    if not names:
        return {}
    values = {}
    if source.is_dir():
        values = read_local(source / read_node(source).state / LOCAL_FILE, schema)
    if not values:
        raise UserError(
            f"{source}: {len(names)} entries of the model stay at each node, {names[0]!r} for one, "
            "and their values are not here; name the folder of a node that has trained, or load "
            "the others alone: load_model(source, shared_only=True)"
        )
    return values


def _federation_of(model: Path, federation: str | Path | None) -> Path:
    if federation is not None:
        return Path(federation)
    folder = model.parent
    if (folder / CONFIG_FILE).exists():
        return folder / read_node(folder).federation
    raise UserError(
        f"{model} is not in a node's folder, so name the federation that it is a model of: "
        "load_model(path, federation='federation.toml')"
    )


def _check_digest(
    path: Path, federation: Federation, arrays: dict[str, Array], metadata: dict[str, str]
) -> None:
    if ENTRY not in arrays and federation.schema.columns(Role.MEMORY):
        raise UserError(
            f"{path}: an exported model, whose digest cannot be checked: it lacks what the "
            "aggregation rule remembers; name the node's folder, or read the file without defl"
        )
    try:
        digest = model_digest(federation, row_of(arrays, federation.schema)).hex()
    except WeightsError as error:
        raise WeightsError(f"{path}: not a model of this federation: {error}") from error
    # The file that a federation starts from names no digest of its own; federation.toml has it.
    stated = metadata.get("digest", federation.initial.hex())
    if digest != stated:
        raise UserError(
            f"{path}: its arrays have the digest {digest}, but it states {stated[:64]}: "
            "the file was changed; copy it again from its node, or from another member"
        )
