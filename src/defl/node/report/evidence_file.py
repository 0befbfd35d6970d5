"""Evidence as files: two signed statements that exclude each other, for anybody to check offline.

A node writes one for each proof that it keeps, whole or not at all. It keeps one proof per member,
kind of statement and epoch (`evidence.py`); a bound per member holds whatever a liar signs.
"""

import os
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from defl.cards import Name
from defl.committee import Federation
from defl.crypto import Scheme
from defl.errors import Malformed, PeerFault, UserError
from defl.fields import MEMBERS_MAX, NUMBER_MAX
from defl.ids import NodeId
from defl.lineage import Epoch
from defl.messages import Attestation, Evidence, Offer, SignedHeader, Statement, Timeout, Upd, Vote
from defl.node.report.contradiction import Contradiction
from defl.node.report.names import Names
from defl.node.setup.requirements import Check, all_hold
from defl.node.setup.typed_toml import read_bytes
from defl.printable import printable
from defl.wire import control_frame_bytes_max, decode, encode

EVIDENCE = "evidence"  # the folder, in the node's
FORMAT: Literal["defl-evidence-1"] = "defl-evidence-1"
FRAME_BYTES_MAX = control_frame_bytes_max(MEMBERS_MAX)
# In base64, and a few short fields.
EVIDENCE_BYTES_MAX = 2 * FRAME_BYTES_MAX
# Six kinds of statements, in two epochs: a member that goes on lying proves nothing new.
FILES_PER_MEMBER_MAX = 12
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

HexChain = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Stated = Annotated[int, Meta(ge=0, lt=NUMBER_MAX)]


class EvidenceFile(Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["defl-evidence-1"]
    chain: HexChain  # the federation's id in epoch 0, by which it is known for all its life
    epoch: Stated  # in which both were signed
    member: Name
    kind: Annotated[str, Meta(max_length=32)]  # the type of the statements: Vote, Upd, ...
    number: Stated  # the view or the round of both
    evidence: Annotated[str, Meta(max_length=EVIDENCE_BYTES_MAX)]  # the message (51), in base64


def contradiction_of(evidence: Evidence, member: str) -> Contradiction:
    first = evidence.first
    return Contradiction(member, type(first).__name__, _number_of(first), evidence.epoch)


def _number_of(statement: Statement) -> int:
    match statement:
        case SignedHeader(header=header):
            return header.view
        case Vote(view=view) | Timeout(view=view):
            return view
        case Offer(round=round_) | Upd(round=round_) | Attestation(round=round_):
            return round_


class EvidenceFolder:
    """The files of one node."""

    def __init__(self, folder: Path, federation: Federation, names: Names) -> None:
        """`folder`: the node's."""
        self._folder = folder / EVIDENCE
        self._origin = federation.origin.hex()
        self._names = names
        try:
            self._written = set(os.listdir(self._folder))
        except OSError:  # none yet, or not to be read: `keep` says so when there is something
            self._written = set()

    def contradiction(self, evidence: Evidence) -> Contradiction:
        """In words, with the name of its file if there is one."""
        found = contradiction_of(evidence, self._names.of(evidence.first.author))
        name = _file_name(found, evidence.first.author)
        return msgspec.structs.replace(found, file=name if name in self._written else None)

    def keep(self, evidence: Evidence) -> None:
        """Written once; a restarted node finds its older proofs here."""
        author = evidence.first.author
        found = contradiction_of(evidence, self._names.of(author))
        name = _file_name(found, author)
        of_member = re.compile(rf"{re.escape(_prefix(found.member, author))}-[a-z]+-[0-9].*")
        others = sum(of_member.fullmatch(other) is not None for other in self._written)
        if name in self._written or others >= FILES_PER_MEMBER_MAX:
            return
        content = EvidenceFile(
            format=FORMAT,
            chain=self._origin,
            epoch=evidence.epoch,
            member=found.member,
            kind=found.kind,
            number=found.number or 0,
            evidence=b64encode(encode(evidence, evidence.epoch)).decode("ascii"),
        )
        self._folder.mkdir(mode=0o755, exist_ok=True)
        temporary = self._folder / f".{name}.writing"
        with temporary.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._folder / name)
        self._written.add(name)


def _file_name(found: Contradiction, author: NodeId) -> str:
    epoch = f"-epoch-{found.epoch}" if found.epoch else ""
    return f"{_prefix(found.member, author)}-{found.word}-{found.number}{epoch}.json"


def _prefix(member: str, author: NodeId) -> str:
    """Names are free text: one that is no plain file name is replaced by the member's number."""
    return f"evidence-{member if _PLAIN.fullmatch(member) else f'_member-{author}'}"


# --- Reading and checking --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EvidenceProof:
    """Whether a member has signed both statements; true in a condition if it has."""

    statement: str  # what is proven, in words
    contradiction: Contradiction
    checks: tuple[Check, ...]

    @property
    def proven(self) -> bool:
        return all_hold(self.checks)

    def __bool__(self) -> bool:
        return self.proven

    def __str__(self) -> str:
        verdict = (
            f"proven: {self.statement}. No honest node signs both: its key runs twice, or it lies"
            if self.proven
            else "NOT PROVEN: this file says nothing about anybody"
        )
        return "\n".join([*(check.line for check in self.checks), "", printable(verdict)])

    def as_json(self) -> dict[str, Any]:
        found = self.contradiction
        return {
            "proven": self.proven,
            "statement": self.statement,
            "member": found.member,
            "kind": found.kind,
            "number": found.number,
            "epoch": found.epoch,
            "checks": [check.json for check in self.checks],
        }


def read_evidence(path: Path) -> tuple[EvidenceFile, Evidence]:
    hint = f"a node keeps evidence in its folder {EVIDENCE}/"
    content = read_bytes(path, hint, EVIDENCE_BYTES_MAX)
    try:
        stated = msgspec.json.decode(content, type=EvidenceFile)
        message = decode(b64decode(stated.evidence, validate=True), FRAME_BYTES_MAX)
    except (msgspec.MsgspecError, ValueError, Malformed) as error:
        raise UserError(f"{path}: not evidence: {error}; get the file again") from error
    if not isinstance(message, Evidence):
        raise UserError(f"{path}: not evidence but a {type(message).__name__}; get the file again")
    return stated, message


def prove_evidence(
    stated: EvidenceFile, evidence: Evidence, epochs: Sequence[Epoch], scheme: Scheme
) -> EvidenceProof:
    """`epochs`: each that is proven, from the origin on."""
    checks = [_same_federation(stated, evidence, epochs)]
    found = contradiction_of(evidence, stated.member)
    if checks[0].holds:
        epoch = epochs[evidence.epoch]
        members = epoch.federation.members
        author = evidence.first.author
        if author < len(members):
            found = contradiction_of(evidence, members[author].name)
        checks += [_as_stated(stated, found), _both_signed(evidence, epoch, scheme, found)]
    words = f"{found.member} signed two different {found.word}s {found.where}"
    in_epoch = f" of epoch {found.epoch}" if found.epoch else ""
    return EvidenceProof(words + in_epoch, found, tuple(checks))


def _same_federation(stated: EvidenceFile, evidence: Evidence, epochs: Sequence[Epoch]) -> Check:
    origin = epochs[0].federation.origin.hex()
    if stated.chain != origin:
        return Check(
            "federation",
            False,
            f"the evidence is of federation {stated.chain[:16]}, the given file is of "
            f"{origin[:16]}: use the federation.toml that the evidence belongs to",
        )
    if evidence.epoch >= len(epochs):
        return Check(
            "federation",
            False,
            f"the evidence is of epoch {evidence.epoch}, and what is given proves the members of "
            f"epoch {len(epochs) - 1}: name a newer lineage with --lineage FILE; a node's folder "
            "has it: defl export FOLDER lineage.json --lineage",
        )
    return Check("federation", True, f"the evidence is of federation {origin[:16]}")


def _as_stated(stated: EvidenceFile, found: Contradiction) -> Check:
    shown = Contradiction(stated.member, stated.kind, stated.number, stated.epoch)
    if shown != found:
        return Check(
            "statements",
            False,
            f"the file states {shown} of {printable(stated.member)}, and holds {found} of "
            f"{found.member}: it was changed",
        )
    return Check("statements", True, f"{found} of {found.member}")


def _both_signed(evidence: Evidence, epoch: Epoch, scheme: Scheme, found: Contradiction) -> Check:
    try:
        epoch.verifier(scheme).verify(evidence)
    except PeerFault as fault:
        return Check("signatures", False, str(fault))
    return Check("signatures", True, f"{found.member} signed both, and they exclude each other")
