"""One file proves every round of a federation's life; changed, it proves nothing.

The federation is that of `support/lineages.py`: eve joins, dan leaves, bob gets another key.
"""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

import defl as api
from defl.node.report.certificate import RoundCertificate
from defl.node.report.lineage_file import LINEAGE_BYTES_MAX, Lineage, lineage_bytes
from defl.node.report.lineage_proof import ProvenEpoch
from defl.node.report.lineage_tables import lineage_tables
from defl.output import RoundClosed
from support.founding import NAMES, defl
from support.lineages import EVE, ROUNDS, ExportedLife
from support.long_lives import write_long_life


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportedLife:
    return ExportedLife(tmp_path_factory.mktemp("exported"))


def refusal(exported: ExportedLife, folder: Path, lineage: Lineage) -> str:
    """Why a changed lineage is not proven."""
    path = folder / "changed.json"
    path.write_bytes(lineage_bytes(lineage))
    answer = defl("verify", exported.federation, "--lineage", path)
    assert answer.code == 1, answer.text
    assert answer.text.endswith("NOT PROVEN: do not rely on this lineage\n")
    return answer.text


def without(lineage: Lineage, round_: int) -> Lineage:
    kept = (one for one in lineage.certificates if one.round != round_)
    return replace(lineage, certificates=tuple(kept))


def with_certificate(lineage: Lineage, certificate: RoundCertificate) -> Lineage:
    certificates = list(lineage.certificates)
    certificates[certificate.round] = certificate
    return replace(lineage, certificates=tuple(certificates))


# --- What is proven ------------------------------------------------------------------------


def test_every_round_and_every_epoch_is_proven(exported: ExportedLife) -> None:
    proof = exported.proof

    assert proof
    assert [entry.round for entry in proof.rounds] == list(range(1, ROUNDS + 1))
    assert [epoch.joined for epoch in proof.epochs] == [(), (EVE,), (), ()]
    assert [epoch.left for epoch in proof.epochs] == [(), (), ("dan",), ()]
    assert [epoch.replaced for epoch in proof.epochs] == [(), (), (), ("bob",)]
    assert {epoch.ends_with for epoch in proof.epochs} == {None}
    assert [len(epoch.members) for epoch in proof.epochs] == [4, 5, 4, 4]
    assert [(epoch.faults, epoch.quorum) for epoch in proof.epochs] == [
        (1, 3),
        (1, 4),
        (1, 3),
        (1, 3),
    ]
    # A node may finish before a certified header shows the last round.
    assert all(entry.complete for entry in proof.rounds[:-1])


def test_contributors_are_those_whose_updates_the_ledger_closed_the_round_with(
    exported: ExportedLife,
) -> None:
    members = exported.churn.newest.federation.members
    closed = {
        notice.round: [members[member].name for member in notice.updates]
        for _, notice in exported.churn.notices_of(RoundClosed, 0)
    }

    assert {e.round: list(e.contributors) for e in exported.proof.rounds} == closed


def test_who_was_left_out_is_named(exported: ExportedLife) -> None:
    """bob's machine was off in the last round of epoch 2."""
    last = exported.proof.rounds[exported.first_round(3) - 2]

    assert last.missing == ("bob",)


def test_the_tables_show_epochs_and_rounds(exported: ExportedLife) -> None:
    answer = defl("verify", exported.federation, "--lineage", exported.path)

    assert answer.code == 0
    assert "joined: eve" in answer.text
    assert "new key: bob" in answer.text
    assert exported.proof.rounds[4].digest[:16] in answer.text


def test_json_has_all_and_the_seconds(exported: ExportedLife) -> None:
    answer = defl("verify", exported.federation, "--lineage", exported.path, "--json").json

    assert answer["proven"] is True
    assert answer["seconds"] > 0
    assert answer["rounds"][0]["contributors"] == list(NAMES)
    assert answer["epochs"][1]["joined"] == [EVE]


def test_a_lineage_may_end_before_the_last_round(exported: ExportedLife, tmp_path: Path) -> None:
    """A node exports while the federation goes on."""
    first = exported.first_round(1)
    begun = replace(
        exported.lineage,
        handovers=exported.lineage.handovers[:1],
        certificates=exported.lineage.certificates[: first - 1],
        states=(),
    )
    path = tmp_path / "begun.json"
    path.write_bytes(lineage_bytes(begun))
    proof = api.verify_lineage(path, exported.federation)

    assert proof
    assert len(proof.epochs) == 2
    assert len(proof.rounds) == first - 2


def test_an_epoch_that_changed_the_last_round_alone_says_so() -> None:
    epoch = ProvenEpoch(2, "c9b1", 5, None, ("alice", "bob", "carol", "dan"), 1, 3, ends_with=600)

    assert "last round: 600" in lineage_tables((epoch,), ())[0]


def test_a_hundred_epochs_are_proven(tmp_path: Path) -> None:
    write_long_life(tmp_path, members=4, epochs=100)
    proof = api.verify_lineage(tmp_path / "lineage.json", tmp_path / "federation.toml")

    assert proof, str(proof)
    assert len(proof.epochs) == 101
    assert [epoch.replaced for epoch in proof.epochs[1:5]] == [(f"member-{i}",) for i in range(4)]


# --- What is refused -----------------------------------------------------------------------


def test_a_changed_byte_anywhere_is_detected(exported: ExportedLife, tmp_path: Path) -> None:
    data = exported.path.read_bytes()
    rng = random.Random(1)  # noqa: S311 - which bytes
    path = tmp_path / "changed.json"
    for place in rng.sample(range(len(data)), 80):
        flipped = data[place] ^ (1 << rng.randrange(7))
        path.write_bytes(data[:place] + bytes([flipped]) + data[place + 1 :])
        answer = defl("verify", exported.federation, "--lineage", path)
        assert answer.code != 0, f"byte {place}: {answer.text}"


@pytest.mark.parametrize("extra", [b" ", b"\n", b"{}"])
def test_the_file_has_one_form(exported: ExportedLife, tmp_path: Path, extra: bytes) -> None:
    path = tmp_path / "longer.json"
    path.write_bytes(exported.path.read_bytes() + extra)

    assert defl("verify", exported.federation, "--lineage", path).code == 2


@pytest.mark.parametrize("round_", [0, 3, ROUNDS - 1])
def test_a_missing_round_is_named(exported: ExportedLife, tmp_path: Path, round_: int) -> None:
    text = refusal(exported, tmp_path, without(exported.lineage, round_))

    assert f"the certificate of round {round_} is missing" in text


def test_missing_rounds_at_the_end_of_an_epoch_are_named(
    exported: ExportedLife, tmp_path: Path
) -> None:
    """The handover shows that the rounds were closed."""
    cut = replace(exported.lineage, certificates=exported.lineage.certificates[:4], states=())
    first = exported.first_round(3)

    assert f"the certificate of rounds 4 to {first - 2} is missing" in (
        refusal(exported, tmp_path, cut)
    )


def test_repeated_and_exchanged_certificates_are_refused(
    exported: ExportedLife, tmp_path: Path
) -> None:
    first, second, *rest = exported.lineage.certificates
    repeated = replace(exported.lineage, certificates=(first, first, second, *rest))
    exchanged = replace(exported.lineage, certificates=(second, first, *rest))

    assert "round 0 is not in its place" in refusal(exported, tmp_path, repeated)
    assert "round 0 is missing" in refusal(exported, tmp_path, exchanged)


def test_a_missing_handover_is_named(exported: ExportedLife, tmp_path: Path) -> None:
    first, _, third = exported.lineage.handovers
    skipped = replace(exported.lineage, handovers=(first, third))
    ends = replace(exported.lineage, handovers=(first,))

    assert "epoch 1: its handover is missing" in refusal(exported, tmp_path, skipped)
    assert "epoch 1: its handover is missing" in refusal(exported, tmp_path, ends)


def test_a_certificate_of_another_epoch_is_refused(exported: ExportedLife, tmp_path: Path) -> None:
    """The model is the same on both sides of a boundary, but only one epoch signs it."""
    boundary = exported.lineage.certificates[exported.first_round(1) - 1]
    assert boundary.epoch == 1
    text = refusal(
        exported, tmp_path, with_certificate(exported.lineage, replace(boundary, epoch=0))
    )

    assert "its certificate is of epoch 0" in text


def test_a_certificate_of_another_federation_is_refused(
    exported: ExportedLife, tmp_path: Path
) -> None:
    other = replace(exported.lineage.certificates[2], chain="00" * 32)

    assert "a certificate of another federation" in (
        refusal(exported, tmp_path, with_certificate(exported.lineage, other))
    )


def test_fewer_signatures_than_the_quorum_of_that_epoch_prove_nothing(
    exported: ExportedLife, tmp_path: Path
) -> None:
    """Three suffice in epoch 0, but epoch 1 has five members."""
    certificate = exported.lineage.certificates[exported.first_round(1)]
    three = replace(certificate, updates=certificate.updates[:3])

    assert "3 members vouch, 4 of 5 are needed" in (
        refusal(exported, tmp_path, with_certificate(exported.lineage, three))
    )


def test_a_departed_member_vouches_for_nothing(exported: ExportedLife, tmp_path: Path) -> None:
    certificate = exported.lineage.certificates[exported.first_round(2)]
    dan = replace(certificate.updates[0], author=3)
    forged = replace(certificate, updates=(*certificate.updates, dan))

    assert "member 3 does not exist in epoch 2" in (
        refusal(exported, tmp_path, with_certificate(exported.lineage, forged))
    )


def test_a_contributor_that_is_hidden_is_noticed_where_the_ledger_shows_the_round(
    exported: ExportedLife, tmp_path: Path
) -> None:
    """Four of five signatures are a quorum, and each one is valid."""
    round_ = exported.first_round(1)
    certificate = exported.lineage.certificates[round_]
    assert len(certificate.updates) == 5
    hidden = replace(certificate, updates=certificate.updates[:4])
    lineage = with_certificate(exported.lineage, hidden)

    assert f"does not hold the updates of round {round_ + 1} that the ledger shows" in (
        refusal(exported, tmp_path, lineage)
    )


def test_without_the_ledgers_state_a_list_of_contributors_is_marked(
    exported: ExportedLife, tmp_path: Path
) -> None:
    """The lineage of before the boundary, without the states that show its rounds."""
    bare = replace(
        exported.lineage, handovers=(), certificates=exported.lineage.certificates[:3], states=()
    )
    path = tmp_path / "bare.json"
    path.write_bytes(lineage_bytes(bare))
    proof = api.verify_lineage(path, exported.federation)

    assert proof
    assert not any(entry.complete for entry in proof.rounds)
    assert "no state of the ledger shows whether others contributed" in str(proof)


def test_a_forged_state_of_the_ledger_is_refused(exported: ExportedLife, tmp_path: Path) -> None:
    states = exported.lineage.states
    swapped = replace(states[0], state=states[1].state)
    forged = replace(exported.lineage, states=(swapped, *states[1:]))
    repeated = replace(exported.lineage, states=(states[0], *states))

    assert "not the one that the members signed" in refusal(exported, tmp_path, forged)
    assert "is not newer than the last" in refusal(exported, tmp_path, repeated)


def test_attestations_prove_the_last_round_alone(exported: ExportedLife, tmp_path: Path) -> None:
    last = exported.lineage.certificates[-1]
    assert last.attestations
    early = replace(last, round=4)

    assert f"only the last round, {ROUNDS}, is attested" in (
        refusal(exported, tmp_path, with_certificate(exported.lineage, early))
    )


def test_a_first_model_other_than_the_agreed_one_is_refused(
    exported: ExportedLife, tmp_path: Path
) -> None:
    certificates = exported.lineage.certificates
    other = replace(certificates[0], digest=certificates[1].digest)

    assert "did not sign" in (
        refusal(exported, tmp_path, with_certificate(exported.lineage, other))
    )


def test_the_lineage_of_another_federation_is_refused(
    exported: ExportedLife, tmp_path: Path
) -> None:
    other = tmp_path / "federation.toml"
    other.write_bytes(exported.federation.read_bytes() + b"# one comment more\n")
    answer = defl("verify", other, "--lineage", exported.path)

    assert answer.code == 1
    assert "began with another federation.toml" in answer.text


def test_a_huge_file_is_not_read(exported: ExportedLife, tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(LINEAGE_BYTES_MAX + 1)
    answer = defl("verify", exported.federation, "--lineage", path)

    assert answer.code == 2
    assert "longer than" in answer.text


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"[" * 100_000, b"\xff"])
def test_a_file_of_another_kind_is_refused(
    exported: ExportedLife, tmp_path: Path, data: bytes
) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(data)

    assert "not a lineage" in defl("verify", exported.federation, "--lineage", path).text
