"""`defl.verify`, `defl.verify_lineage`, `defl.load_model` and evidence: files, checked offline."""

from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from time import perf_counter
from typing import Any

from defl.aggregation.memory import ENTRY
from defl.committee import Federation
from defl.crypto import Ed25519Scheme
from defl.errors import BrokenLineage, UserError, WeightsError
from defl.lineage import Epoch, epochs_of
from defl.node.report.certificate import read_certificate, verify_model
from defl.node.report.evidence_file import EvidenceProof, prove_evidence, read_evidence
from defl.node.report.export import write_whole
from defl.node.report.lineage_file import (
    LINEAGE_BYTES_MAX,
    Lineage,
    kept_lineage,
    lineage_bytes,
    read_lineage,
)
from defl.node.report.lineage_proof import (
    LineageChecker,
    ProvenEpoch,
    ProvenRound,
    require_origin,
)
from defl.node.report.lineage_tables import lineage_tables
from defl.node.report.model_file import model_digest, read_model, row_of
from defl.node.report.results import MODEL
from defl.node.setup.agreement import Agreement, read_federation
from defl.node.setup.config import CONFIG_FILE, read_node
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


def verify(
    model: str | Path,
    certificate: str | Path,
    federation: str | Path,
    *,
    lineage: str | Path | None = None,
) -> ModelProof:
    """Do enough members of the federation vouch for exactly this model?

    All are files as a node writes and uses them: a .safetensors model, its round certificate and
    the federation.toml that the federation began with. Once members have changed, `lineage` proves
    who the members were that signed: a file that `defl export --lineage` writes, or a node's
    folder. No network and no node is needed. A file that is missing or cannot be read is a
    UserError; a model that is not proven is an answer, and each check says why.
    """
    agreement = read_federation(Path(federation))
    statement = read_certificate(Path(certificate))
    arrays, metadata = read_model(Path(model))
    epochs, chain = _proven_epochs(statement.epoch, agreement, lineage)
    federations = [epoch.federation for epoch in epochs]
    checks = verify_model(federations, arrays, metadata, statement)
    return ModelProof(statement.round, statement.digest, (*chain, *checks))


def verify_evidence(
    evidence: Path, federation: Path, *, lineage: Path | None = None
) -> EvidenceProof:
    """Has a member signed two statements that exclude each other? Checked as in `verify`."""
    agreement = read_federation(federation)
    stated, message = read_evidence(evidence)
    epochs, chain = _proven_epochs(message.epoch, agreement, lineage)
    proof = prove_evidence(stated, message, epochs, Ed25519Scheme())
    return replace(proof, checks=(*chain, *proof.checks))


def _proven_epochs(
    epoch: int, agreement: Agreement, lineage: str | Path | None
) -> tuple[tuple[Epoch, ...], tuple[Check, ...]]:
    """Each epoch up to this one, if the lineage goes so far, and what was checked of it."""
    if lineage is None:
        return (Epoch(agreement.federation),), ()
    given = _lineage_at(Path(lineage))
    try:
        require_origin(agreement, given)
        epochs = epochs_of(agreement.federation, given.handovers[:epoch], Ed25519Scheme())
    except BrokenLineage as broken:
        return (Epoch(agreement.federation),), (Check("lineage", False, str(broken)),)
    proves = f"proves the members of epoch {len(epochs) - 1}"
    return epochs, (Check("lineage", True, proves),)


@dataclass(frozen=True, slots=True)
class LineageProof:
    """Whether every round of a federation's life is proven; true in a condition if it is."""

    checks: tuple[Check, ...]
    epochs: tuple[ProvenEpoch, ...]  # empty if it is not proven
    rounds: tuple[ProvenRound, ...]
    rounds_planned: int  # as the members last agreed
    seconds: float = field(compare=False)  # that the check took

    @property
    def proven(self) -> bool:
        return all_hold(self.checks)

    def __bool__(self) -> bool:
        return self.proven

    def __str__(self) -> str:
        lines = [check.line for check in self.checks]
        if not self.proven:
            return "\n".join([*lines, "", "NOT PROVEN: do not rely on this lineage"])
        parts = ["\n".join(lines), *lineage_tables(self.epochs, self.rounds)]
        return "\n\n".join([*parts, f"proven in {self.seconds:.2f} s"])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def as_json(self) -> dict[str, Any]:
        return {
            "proven": self.proven,
            "checks": [check.json for check in self.checks],
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "rounds": [asdict(entry) for entry in self.rounds],
            "rounds_planned": self.rounds_planned,
            "seconds": self.seconds,
        }


def verify_lineage(lineage: str | Path, federation: str | Path) -> LineageProof:
    """Was each round of the federation proven by the members of its time?

    `lineage` is a file as `defl export --lineage` writes it, or a node's folder; `federation` is
    the federation.toml that the federation began with. Both are checked as in `verify`.
    """
    return _prove(_lineage_at(Path(lineage)), read_federation(Path(federation)))


def _lineage_at(path: Path) -> Lineage:
    return kept_lineage(path) if path.is_dir() else read_lineage(path)


def export_lineage(
    folder: Path, output: Path, other: Lineage | None, *, force: bool
) -> LineageProof:
    """Write what a node's folder proves, completed by another member's lineage; or refuse."""
    lineage = kept_lineage(folder, other)
    proof = _prove(lineage, read_federation(folder / read_node(folder).federation))
    if not proof:
        raise UserError(
            f"{folder}: {proof.checks[0].detail}; if this node was away or joined late, complete "
            "it with another member's lineage: --complete-from FILE"
        )
    data = lineage_bytes(lineage)
    if len(data) > LINEAGE_BYTES_MAX:
        raise UserError(f"{folder}: the lineage would be longer than {LINEAGE_BYTES_MAX} bytes")
    write_whole(output, lambda path: path.write_bytes(data), force=force)
    return proof


def _prove(lineage: Lineage, agreement: Agreement) -> LineageProof:
    began = perf_counter()
    checker = LineageChecker(agreement.federation, Ed25519Scheme())
    try:
        require_origin(agreement, lineage)
        checker.check(lineage)
    except BrokenLineage as broken:
        failed = Check("lineage", False, str(broken))
        planned = agreement.federation.rounds
        return LineageProof((failed,), (), (), planned, perf_counter() - began)
    epochs, rounds = tuple(checker.epochs()), tuple(checker.rounds(lineage.certificates))
    newest = checker.federations[-1]
    origin = newest.origin.hex()[:16]
    checks = (
        Check("origin", True, f"the lineage is of federation {origin}"),
        Check("epochs", True, f"{_count(len(epochs), 'epoch')}, each proven by the one before"),
        Check("rounds", True, f"{_count(len(rounds), 'round')} of {newest.rounds} proven"),
    )
    return LineageProof(checks, epochs, rounds, newest.rounds, perf_counter() - began)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
