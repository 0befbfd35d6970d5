"""The signatures of q members prove a round's model offline, and nothing less does.

The certificates come from a simulated federation with real signatures.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from defl.crypto import Ed25519Scheme
from defl.ids import NodeId
from defl.node.report.certificate import (
    RoundCertificate,
    certificate_of,
    certificate_text,
    read_certificate,
)
from defl.node.report.model_file import write_model
from defl.node.setup.agreement import Agreement, read_federation
from defl.node.setup.config import read_identity
from defl.output import Attested, Notice, RoundProven
from defl.sim.cluster import Cluster
from defl.sim.transcript import Transcript
from defl.work import model_blob, model_row
from support.founding import NAMES, CommandResult, agree, defl, init_nodes

LAST = 2  # the federation's rounds: 0 and 1 are proven by updates, the last by attestations


class Witness(Transcript):
    """Records node 0's notices of proven rounds, with the model's bytes at that time."""

    cluster: Cluster

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.proven: dict[int, tuple[RoundProven | Attested, bytes]] = {}

    def notice(self, now: float, node: NodeId, notice: Notice) -> None:  # noqa: ARG002 - as its base
        if node == 0 and isinstance(notice, RoundProven | Attested):
            payload = self.cluster.nodes[0].disk.read(notice.digest)
            self.proven[notice.round] = (notice, payload)


@dataclass(frozen=True)
class Proven:
    folder: Path
    agreement: Agreement

    def model(self, round_: int) -> Path:
        return self.folder / f"model-{round_}.safetensors"

    def certificate(self, round_: int) -> Path:
        return self.folder / f"certificate-{round_}.json"

    @property
    def federation(self) -> Path:
        return self.folder / "federation.toml"


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Proven:
    folder = tmp_path_factory.mktemp("proven")
    agreement = agree(folder, init_nodes(folder), "--rounds", LAST)
    federation = agreement.federation
    signers = tuple(read_identity(folder / name, name).signer for name in NAMES)
    initial = model_blob(federation, np.zeros(federation.schema.values, dtype=np.float32))
    assert initial[0].digest == federation.initial
    witness = Witness()
    witness.cluster = Cluster(
        federation, signers, Ed25519Scheme(), initial, seed=1, transcript=witness
    )
    witness.cluster.run()
    result = Proven(folder, agreement)
    assert sorted(witness.proven) == [0, 1, LAST]
    for round_, (notice, payload) in witness.proven.items():
        text = certificate_text(certificate_of(federation, notice))
        result.certificate(round_).write_text(text, encoding="utf-8")
        metadata = {"round": str(round_), "digest": notice.digest.hex()}
        write_model(
            result.model(round_), federation.schema, model_row(federation, payload), metadata
        )
    return result


def verify(proven: Proven, model: Path, certificate: Path) -> CommandResult:
    return defl("verify", model, certificate, proven.federation)


def failures(proven: Proven, model: Path, certificate: Path) -> dict[str, str]:
    answer = defl("verify", model, certificate, proven.federation, "--json")
    assert answer.code == 1, answer.text
    assert answer.json["proven"] is False
    return {c["check"]: c["detail"] for c in answer.json["checks"] if not c["holds"]}


def changed(proven: Proven, path: Path, round_: int, **fields: Any) -> Path:
    certificate = msgspec.structs.replace(read_certificate(proven.certificate(round_)), **fields)
    path.write_text(certificate_text(certificate), encoding="utf-8")
    return path


@pytest.mark.parametrize("round_", [0, 1, LAST])
def test_every_round_of_a_federation_is_proven(proven: Proven, round_: int) -> None:
    answer = verify(proven, proven.model(round_), proven.certificate(round_))

    assert answer.code == 0, answer.text
    assert f"vouch for the model of round {round_}" in answer.text
    assert answer.text.endswith("proven\n")


def test_the_last_round_is_proven_by_attestations_and_the_others_by_updates(proven: Proven) -> None:
    kinds = [read_certificate(proven.certificate(r)) for r in (0, 1, LAST)]

    assert [bool(c.updates) for c in kinds] == [True, True, False]
    assert [bool(c.attestations) for c in kinds] == [False, False, True]


def test_one_changed_byte_of_the_model_is_detected(proven: Proven, tmp_path: Path) -> None:
    data = bytearray(proven.model(1).read_bytes())
    data[-1] ^= 1
    model = tmp_path / "model.safetensors"
    model.write_bytes(data)

    assert "was changed" in failures(proven, model, proven.certificate(1))["model"]


def test_a_model_of_another_round_is_detected(proven: Proven) -> None:
    wrong = failures(proven, proven.model(0), proven.certificate(1))

    assert set(wrong) == {"model"}
    assert "use two files of one round" in wrong["model"]


def test_a_model_of_another_round_without_metadata_is_detected(
    proven: Proven, tmp_path: Path
) -> None:
    model = tmp_path / "model.safetensors"
    save_file(load_file(proven.model(0)), model)

    assert "the file was changed" in failures(proven, model, proven.certificate(1))["model"]


def test_a_certificate_is_not_valid_for_another_round(proven: Proven, tmp_path: Path) -> None:
    for round_ in (1, LAST):
        forged = changed(proven, tmp_path / "c.json", round_, round=round_ + 1)
        found_wrong = failures(proven, proven.model(round_), forged)
        assert "did not sign this" in found_wrong["signatures"]


def test_a_model_whose_metadata_name_another_round_is_detected(
    proven: Proven, tmp_path: Path
) -> None:
    model = tmp_path / "model.safetensors"
    save_file(load_file(proven.model(1)), model, metadata={"round": "2"})

    assert "states round 2" in failures(proven, model, proven.certificate(1))["model"]


def test_an_additional_array_is_detected(proven: Proven, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    save_file({**load_file(proven.model(1)), "extra": np.zeros(1, np.float32)}, model)

    assert "'extra' is not among" in failures(proven, model, proven.certificate(1))["model"]


@pytest.mark.parametrize("array", [np.zeros(63, np.float32), np.zeros(64, np.float64)])
def test_a_model_of_another_shape_or_dtype_is_detected(
    proven: Proven, tmp_path: Path, array: Any
) -> None:
    model = tmp_path / "model.safetensors"
    save_file({"point": array}, model)

    assert (
        "not a model of this federation"
        in (failures(proven, model, proven.certificate(1))["model"])
    )


def test_a_certificate_of_another_federation_proves_nothing(proven: Proven, tmp_path: Path) -> None:
    """The same members and facts; one comment differs."""
    other = tmp_path / "federation.toml"
    other.write_bytes(proven.agreement.text + b"# a word more\n")
    assert read_federation(other).federation.chain != proven.agreement.federation.chain

    answer = defl("verify", proven.model(1), proven.certificate(1), other)

    assert answer.code == 1
    assert "NO  federation: " in answer.text
    assert "did not sign this" in answer.text


def test_a_certificate_with_a_forged_federation_id_proves_nothing(
    proven: Proven, tmp_path: Path
) -> None:
    other = tmp_path / "federation.toml"
    other.write_bytes(proven.agreement.text + b"# a word more\n")
    chain = read_federation(other).federation.chain.hex()
    forged = changed(proven, tmp_path / "c.json", 1, chain=chain)

    answer = defl("verify", proven.model(1), forged, other, "--json")

    assert answer.code == 1
    assert [c["holds"] for c in answer.json["checks"]] == [True, True, False]


@pytest.mark.parametrize("round_", [1, LAST])
def test_one_signature_less_than_a_quorum_proves_nothing(
    proven: Proven, tmp_path: Path, round_: int
) -> None:
    whole = read_certificate(proven.certificate(round_))
    enough = _cut(proven, tmp_path / "enough.json", round_, whole, 3)
    few = _cut(proven, tmp_path / "few.json", round_, whole, 2)

    assert verify(proven, proven.model(round_), enough).code == 0
    failed = failures(proven, proven.model(round_), few)
    assert failed == {"signatures": "2 members vouch, 3 of 4 are needed"}


def _cut(proven: Proven, path: Path, round_: int, whole: RoundCertificate, count: int) -> Path:
    return changed(
        proven,
        path,
        round_,
        updates=whole.updates[:count],
        attestations=whole.attestations[:count],
    )


@pytest.mark.parametrize("kind", ["updates", "attestations"])
def test_a_member_is_counted_once(proven: Proven, tmp_path: Path, kind: str) -> None:
    round_ = LAST if kind == "attestations" else 1
    signed = getattr(read_certificate(proven.certificate(round_)), kind)
    twice = changed(proven, tmp_path / "c.json", round_, **{kind: (*signed[:2], signed[0])})

    failed = failures(proven, proven.model(round_), twice)

    author = signed[0].author
    assert failed == {"signatures": f"member {author} ({NAMES[author]}) is counted twice"}


def test_a_signature_under_another_members_name_is_detected(proven: Proven, tmp_path: Path) -> None:
    first, *others = read_certificate(proven.certificate(LAST)).attestations
    swapped = msgspec.structs.replace(others[0], signature=first.signature)
    forged = changed(proven, tmp_path / "c.json", LAST, attestations=(first, swapped, *others[1:]))

    failed = failures(proven, proven.model(LAST), forged)

    assert "did not sign this" in failed["signatures"]


def test_an_author_that_is_not_a_member_is_refused(proven: Proven, tmp_path: Path) -> None:
    answer = read_certificate(proven.certificate(LAST)).attestations
    stranger = msgspec.structs.replace(answer[0], author=4)
    forged = changed(proven, tmp_path / "c.json", LAST, attestations=(*answer[:2], stranger))

    failed = failures(proven, proven.model(LAST), forged)

    assert failed == {"signatures": "member 4 does not exist in epoch 0"}


def test_an_empty_certificate_and_a_mixed_one_prove_nothing(proven: Proven, tmp_path: Path) -> None:
    updates = read_certificate(proven.certificate(1)).updates
    empty = changed(proven, tmp_path / "e.json", LAST, attestations=())
    mixed = changed(proven, tmp_path / "m.json", LAST, updates=updates)

    assert "0 members vouch" in failures(proven, proven.model(LAST), empty)["signatures"]
    assert "one kind" in failures(proven, proven.model(LAST), mixed)["signatures"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[:-20], "not a round certificate"),
        (lambda text: text.replace('"round":', '"rounds":'), "unknown field `rounds`"),
        (lambda text: text.replace('"round": 2', '"round": -1'), "not a round certificate"),
        (lambda text: text.replace("certificate-1", "certificate-9"), "not a round certificate"),
        (lambda text: "\x00" + text, "not a round certificate"),
        (lambda text: text + " " * 2**20, "longer than"),
    ],
)
def test_a_malformed_certificate_is_refused(
    proven: Proven, tmp_path: Path, spoil: Any, message: str
) -> None:
    path = tmp_path / "c.json"
    path.write_text(spoil(proven.certificate(LAST).read_text(encoding="utf-8")), encoding="utf-8")

    answer = verify(proven, proven.model(LAST), path)

    assert answer.code == 2
    assert message in answer.text


def test_a_missing_or_unreadable_file_is_named(proven: Proven, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    spoilt = tmp_path / "spoilt.safetensors"
    spoilt.write_bytes(proven.model(1).read_bytes()[:40])

    for answer in (
        verify(proven, gone, proven.certificate(1)),
        verify(proven, proven.model(1), gone),
        defl("verify", proven.model(1), proven.certificate(1), gone),
    ):
        assert answer.code == 2
        assert f"{gone}: no such file" in answer.text
    broken = verify(proven, spoilt, proven.certificate(1))
    assert broken.code == 2
    assert "not a safetensors file" in broken.text
