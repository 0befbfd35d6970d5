"""Evidence as a file: what a node writes, how much of it, and what it proves to anybody."""

import json
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from msgspec.structs import replace

from defl.crypto import Ed25519Scheme
from defl.errors import UserError
from defl.ids import NodeId, View
from defl.lineage import Epoch, epochs_of
from defl.messages import Evidence, Vote, vote_statement
from defl.node.report.evidence_file import (
    FILES_PER_MEMBER_MAX,
    EvidenceFolder,
    EvidenceProof,
    prove_evidence,
    read_evidence,
)
from defl.node.report.names import Names
from defl.participant import Participant
from defl.wire import encode
from support.builders import Small, name, tampered

SMALL = Small()
SCHEME = Ed25519Scheme()
EPOCHS = (Epoch(SMALL.federation),)
LIAR = SMALL.federation.members[1].name


def votes(view: int) -> Evidence:
    return Evidence(SMALL.vote(1, view, name("one")), SMALL.vote(1, view, name("another")))


PROOFS = {
    "vote-212": votes(212),
    "timeout-3": Evidence(SMALL.timeout(1, 3), SMALL.timeout(1, 3, SMALL.qc(1, name("certified")))),
    "offer-4": Evidence(SMALL.offer(1, 4, SMALL.blob(1)[0]), SMALL.offer(1, 4, SMALL.blob(2)[0])),
    "update-4": Evidence(SMALL.upd(1, 4), SMALL.upd(1, 4, digest=name("another"))),
    "attestation-3": Evidence(
        SMALL.attestation(1, 3, name("one")), SMALL.attestation(1, 3, name("another"))
    ),
}


class Folder:
    """A node's, and the names of its files."""

    def __init__(self, path: Path) -> None:
        self.path = path / "evidence"
        self._node = path
        self.open()

    def open(self) -> None:
        """As at a start of the node."""
        participant = Participant(SMALL.federation, NodeId(0), SMALL.signers[0], SMALL.durable())
        self.files = EvidenceFolder(self._node, SMALL.federation, Names(participant))

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())

    def proof(self, file: str) -> EvidenceProof:
        return prove_evidence(*read_evidence(self.path / file), EPOCHS, SCHEME)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_folder_that_cannot_be_read_stops_no_node(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("of somebody else")
    files = Folder(tmp_path).files
    with pytest.raises(FileExistsError):  # which the node logs
        files.keep(votes(212))
    assert files.contradiction(votes(212)).file is None


@pytest.mark.parametrize("kind", PROOFS)
def test_each_kind_of_contradiction_becomes_a_file_that_proves_it(
    folder: Folder, kind: str
) -> None:
    folder.files.keep(PROOFS[kind])
    word, number = kind.split("-")

    assert folder.names == [f"evidence-{LIAR}-{kind}.json"]
    proof = folder.proof(folder.names[0])
    assert proof, str(proof)
    assert f"{LIAR} signed two different {word}s in " in proof.statement
    assert proof.statement.endswith(f" {number}")
    assert folder.files.contradiction(PROOFS[kind]).file == folder.names[0]


def test_a_proof_is_written_once_and_found_again_after_a_restart(folder: Folder) -> None:
    folder.files.keep(votes(5))
    path = folder.path / folder.names[0]
    written = path.stat().st_mtime_ns
    folder.open()
    folder.files.keep(votes(5))

    assert path.stat().st_mtime_ns == written
    assert folder.files.contradiction(votes(5)).file == path.name
    assert folder.files.contradiction(votes(6)).file is None


def test_a_member_that_goes_on_lying_fills_no_disk_and_hides_nobody(folder: Folder) -> None:
    for view in range(FILES_PER_MEMBER_MAX + 5):
        folder.files.keep(votes(view))
    other = Evidence(SMALL.vote(2, 7, name("one")), SMALL.vote(2, 7, name("another")))
    folder.files.keep(other)

    assert len(folder.names) == FILES_PER_MEMBER_MAX + 1
    assert folder.files.contradiction(other).file in folder.names


def test_a_name_that_is_no_plain_file_name_stays_out_of_the_file_system(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Names, "of", lambda *_: "../../grace\u202e")
    folder.files.keep(votes(5))

    assert folder.names == ["evidence-_member-1-vote-5.json"]


# --- What proves nothing ---------------------------------------------------------------------


def rewritten(folder: Folder, proof: Evidence, **fields: object) -> EvidenceProof:
    """The proof of a file with this evidence and these fields, as somebody else wrote it."""
    folder.files.keep(votes(5))
    path = folder.path / folder.names[0]
    content = json.loads(path.read_text(encoding="utf-8"))
    content["evidence"] = b64encode(encode(proof, proof.epoch)).decode("ascii")
    path.write_text(json.dumps({**content, **fields}), encoding="utf-8")
    return folder.proof(path.name)


def failed(proof: EvidenceProof) -> list[str]:
    return [check.name for check in proof.checks if not check.holds]


def test_a_signature_of_somebody_else_proves_nothing(folder: Folder) -> None:
    forged = tampered(SMALL.vote(2, 5, name("another")), author=NodeId(1))
    proof = rewritten(folder, Evidence(SMALL.vote(1, 5, name("one")), forged))

    assert failed(proof) == ["signatures"]
    assert "NOT PROVEN: this file says nothing about anybody" in str(proof)


def test_two_statements_that_an_honest_node_may_sign_prove_nothing(folder: Folder) -> None:
    one, later = SMALL.vote(1, 5, name("one")), SMALL.vote(1, 6, name("another"))

    assert failed(rewritten(folder, Evidence(one, later))) == ["signatures"]
    assert failed(rewritten(folder, Evidence(one, one))) == ["signatures"]


@pytest.mark.parametrize("field", [{"member": "grace"}, {"number": 6}, {"kind": "Timeout"}])
def test_the_words_of_the_file_must_be_those_of_its_statements(
    folder: Folder, field: dict[str, object]
) -> None:
    assert failed(rewritten(folder, votes(5), **field)) == ["statements"]


def test_a_name_in_the_file_writes_no_line_of_its_own(folder: Folder) -> None:
    proof = rewritten(folder, votes(5), member="grace\nok  signatures: grace signed both")

    assert not [
        line for line in str(proof).splitlines() if line.startswith("ok  signatures: grace")
    ]


def test_evidence_of_another_federation_proves_nothing(folder: Folder) -> None:
    assert failed(rewritten(folder, votes(5), chain="ab" * 32)) == ["federation"]


def in_epoch_1(block: str) -> Vote:
    chain = epochs_of(SMALL.federation, [SMALL.handover()], SCHEME)[1].federation.chain
    message = vote_statement(chain, 1, View(5), name(block))
    return Vote(1, View(5), name(block), NodeId(1), SMALL.sign(1, message), View(0), View(0))


def test_evidence_of_a_later_epoch_needs_the_lineage(folder: Folder) -> None:
    later = replace(Evidence(in_epoch_1("one"), in_epoch_1("another")), epoch=1)
    folder.files.keep(later)
    (file,) = folder.names
    content = read_evidence(folder.path / file)
    alone = prove_evidence(*content, EPOCHS, SCHEME)
    epochs = epochs_of(SMALL.federation, [SMALL.handover()], SCHEME)

    assert file == f"evidence-{LIAR}-vote-5-epoch-1.json"
    assert failed(alone) == ["federation"]
    assert "--lineage FILE" in alone.checks[0].detail
    proof = prove_evidence(*content, epochs, SCHEME)
    assert proof, str(proof)
    assert proof.statement.endswith("in view 5 of epoch 1")


def test_a_damaged_file_is_refused_with_advice(folder: Folder) -> None:
    folder.files.keep(votes(5))
    path = folder.path / folder.names[0]
    content = json.loads(path.read_text(encoding="utf-8"))
    cut = b64encode(b64decode(content["evidence"])[:-1]).decode("ascii")
    other = b64encode(encode(SMALL.vote(1, 5, name("one")))).decode("ascii")
    for wrong in ({"evidence": cut}, {"evidence": "%"}, {"evidence": other}, {"format": "x"}):
        path.write_text(json.dumps({**content, **wrong}), encoding="utf-8")
        with pytest.raises(UserError, match="get the file again"):
            read_evidence(path)
    with pytest.raises(UserError, match="no such file; a node keeps evidence in its folder"):
        read_evidence(path.with_name("missing.json"))
