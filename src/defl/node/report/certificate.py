"""Round certificates: files that prove a round's model to anyone, offline.

The proof is the signatures of q members. Members that trained for round r + 1 signed the digest of
their base, the model of round r. The last round has no successor, so members attest its model
instead. Both kinds are verified from the federation's file, the certificate and the model alone;
where members have changed since, also from the handovers between the epochs (`lineage.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from defl.committee import Federation
from defl.crypto import Ed25519Scheme, Scheme
from defl.errors import UserError, WeightsError
from defl.fields import MEMBERS_MAX, NUMBER_MAX
from defl.ids import Digest, NodeId, Round
from defl.messages import Upd, attestation_statement
from defl.node.report.model_file import model_digest, row_of
from defl.node.setup.requirements import Check
from defl.node.setup.typed_toml import read_bytes
from defl.output import Attested, Reference, RoundProven
from defl.schema import Array

FORMAT: Literal["defl-round-certificate-1"] = "defl-round-certificate-1"
# A hundred members' signatures take about 40 KB.
CERTIFICATE_BYTES_MAX = 2**20

HexDigest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
HexSignature = Annotated[str, Meta(pattern="^[0-9a-f]{128}$")]
Author = Annotated[int, Meta(ge=0, lt=MEMBERS_MAX)]
Number = Annotated[int, Meta(ge=0, lt=NUMBER_MAX)]  # one below, so that round + 1 is a number too


class SignedUpdate(Struct, frozen=True, forbid_unknown_fields=True):
    """An UPD of the next round. Its base is the certificate's model, so it is not repeated."""

    author: Author
    digest: HexDigest
    size: Number
    signature: HexSignature


class SignedAttestation(Struct, frozen=True, forbid_unknown_fields=True):
    author: Author
    signature: HexSignature


class RoundCertificate(Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["defl-round-certificate-1"]
    chain: HexDigest  # the federation's id in epoch 0, by which it is known for all its life
    epoch: Number  # in which the signatures were made
    round: Number
    digest: HexDigest  # of the round's model
    updates: Annotated[tuple[SignedUpdate, ...], Meta(max_length=MEMBERS_MAX)] = ()
    attestations: Annotated[tuple[SignedAttestation, ...], Meta(max_length=MEMBERS_MAX)] = ()


def certificate_of(federation: Federation, notice: RoundProven | Attested) -> RoundCertificate:
    """`federation`: its facts in any epoch."""
    updates: tuple[SignedUpdate, ...] = ()
    attestations: tuple[SignedAttestation, ...] = ()
    if isinstance(notice, RoundProven):
        updates = signed_updates(notice.updates)
    else:
        attestations = tuple(
            SignedAttestation(attestation.author, attestation.signature.hex())
            for attestation in notice.attestations
        )
    return RoundCertificate(
        format=FORMAT,
        chain=federation.origin.hex(),
        epoch=notice.epoch,
        round=notice.round,
        digest=notice.digest.hex(),
        updates=updates,
        attestations=attestations,
    )


def signed_updates(references: Iterable[Reference]) -> tuple[SignedUpdate, ...]:
    return tuple(
        SignedUpdate(ref.author, ref.digest.hex(), ref.size, ref.signature.hex())
        for ref in references
    )


def certificate_text(certificate: RoundCertificate) -> str:
    return msgspec.json.format(msgspec.json.encode(certificate), indent=1).decode() + "\n"


def read_certificate(path: Path) -> RoundCertificate:
    hint = "a node writes its round certificates beside its models"
    content = read_bytes(path, hint, CERTIFICATE_BYTES_MAX)
    try:
        return msgspec.json.decode(content, type=RoundCertificate)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a round certificate: {error}; get the file again") from error


def verify_model(
    federations: Sequence[Federation],
    arrays: Mapping[str, Array],
    metadata: Mapping[str, str],
    proof: RoundCertificate,
) -> list[Check]:
    """Check that q members vouch for exactly this model; every failed check has its reason.

    `federations`: the facts of each epoch that is proven, from the origin on.
    """
    same = _same_federation(federations, proof)
    facts = federations[proof.epoch] if same.holds else federations[0]
    return [
        same,
        _same_model(facts, proof, arrays, metadata),
        vouched(facts, proof, Ed25519Scheme()),
    ]


def _same_federation(federations: Sequence[Federation], proof: RoundCertificate) -> Check:
    name, origin = "federation", federations[0].origin.hex()
    if proof.chain != origin:
        return Check(
            name,
            False,
            f"the certificate is of federation {proof.chain[:16]}, the given file is of "
            f"{origin[:16]}: use the federation.toml that the certificate belongs to",
        )
    if proof.epoch >= len(federations):
        return Check(
            name,
            False,
            f"the certificate is of epoch {proof.epoch}, and what is given proves the members of "
            f"epoch {len(federations) - 1}: name a newer lineage with --lineage FILE; a node's "
            "folder has it: defl export FOLDER lineage.json --lineage",
        )
    epoch = f" in epoch {proof.epoch}" if proof.epoch else ""
    return Check(name, True, f"the certificate is of federation {proof.chain[:16]}{epoch}")


def _same_model(
    federation: Federation,
    proof: RoundCertificate,
    arrays: Mapping[str, Array],
    metadata: Mapping[str, str],
) -> Check:
    try:
        row = row_of(arrays, federation.schema)
    except WeightsError as error:
        return Check("model", False, f"not a model of this federation: {error}")
    claimed = metadata.get("round", str(proof.round))
    if claimed != str(proof.round):
        return Check(
            "model",
            False,
            f"the file states round {claimed[:20]}, the certificate is for round "
            f"{proof.round}: use two files of one round (a round is proven only when the next "
            "one closes)",
        )
    digest = model_digest(federation, row).hex()
    if digest != proof.digest:
        return Check(
            "model",
            False,
            f"its digest is {digest}, the certificate is for {proof.digest}: the file was changed",
        )
    return Check("model", True, f"digest {digest}")


def vouched(federation: Federation, proof: RoundCertificate, scheme: Scheme) -> Check:
    """At least q distinct members signed. One invalid signature invalidates the certificate."""
    committee = federation.committee
    name = "signatures"
    if proof.updates and proof.attestations:
        return Check(name, False, "updates and attestations in one certificate; it has one kind")
    signers: set[NodeId] = set()
    for author, message, signature in _statements(federation, proof):
        if not committee.has(author):
            return Check(name, False, f"member {author} does not exist in epoch {federation.epoch}")
        member = f"member {author} ({federation.members[author].name})"
        if author in signers:
            return Check(name, False, f"{member} is counted twice")
        if not scheme.verify(committee.keys[author], message, signature):
            return Check(name, False, f"{member} did not sign this")
        signers.add(author)
    if len(signers) < committee.quorum:
        return Check(
            name,
            False,
            f"{len(signers)} members vouch, {committee.quorum} of {committee.size} are needed",
        )
    names = ", ".join(federation.members[author].name for author in sorted(signers))
    return Check(
        name,
        True,
        f"{len(signers)} of {committee.size} members vouch for the model of round {proof.round} "
        f"({committee.quorum} are needed): {names}",
    )


def _statements(
    federation: Federation, proof: RoundCertificate
) -> list[tuple[NodeId, Digest, bytes]]:
    chain, epoch = federation.chain, federation.epoch
    model = Digest(bytes.fromhex(proof.digest))
    signed = []
    for update in proof.updates:
        upd = Upd(
            round=Round(proof.round + 1),
            author=NodeId(update.author),
            digest=Digest(bytes.fromhex(update.digest)),
            size=update.size,
            base=model,
            ackers=b"",
            acks=(),
            signature=bytes.fromhex(update.signature),
        )
        signed.append((upd.author, upd.statement(chain, epoch), upd.signature))
    attestation = attestation_statement(chain, epoch, Round(proof.round), model)
    signed += [
        (NodeId(attested.author), attestation, bytes.fromhex(attested.signature))
        for attested in proof.attestations
    ]
    return signed
