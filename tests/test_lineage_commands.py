"""A node keeps its proofs and exports them; a model of a later epoch is verified with them."""

import asyncio
import shutil
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

import defl as api
from defl.errors import UserError
from defl.messages import Handover
from defl.node.report.archive import ARCHIVE, Archive
from defl.node.report.certificate import read_certificate
from defl.node.report.history import RoundHistory
from defl.node.report.lineage_file import lineage_bytes, read_lineage
from defl.node.report.log import Log
from defl.node.report.metrics import Measures
from defl.node.report.names import Names
from defl.node.report.results import Results
from defl.node.store.blobs import Blobs
from defl.output import Attested, EpochBegan, Finished, RoundProven
from support.founding import NAMES, defl
from support.lineages import EVE, ROUNDS, ExportedLife


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportedLife:
    return ExportedLife(tmp_path_factory.mktemp("exported"))


# --- One model of a later epoch ------------------------------------------------------------


@pytest.mark.parametrize("epoch", [0, 1, 2, 3])
def test_a_model_of_any_epoch_is_proven_with_the_lineage(
    exported: ExportedLife, epoch: int
) -> None:
    round_ = exported.first_round(epoch) + 1
    proof = api.verify(
        exported.model(round_),
        exported.certificate(round_),
        exported.federation,
        lineage=exported.path,
    )

    assert proof, str(proof)
    assert read_certificate(exported.certificate(round_)).epoch == epoch


def test_a_model_of_epoch_0_needs_no_lineage(exported: ExportedLife) -> None:
    assert api.verify(exported.model(1), exported.certificate(1), exported.federation)


def test_without_a_lineage_a_later_certificate_says_what_is_missing(exported: ExportedLife) -> None:
    answer = defl(
        "verify", exported.model(ROUNDS), exported.certificate(ROUNDS), exported.federation
    )

    assert answer.code == 1
    assert "is of epoch 3, and what is given proves the members of epoch 0" in answer.text
    assert "--lineage FILE" in answer.text


def test_a_lineage_that_ends_too_early_does_not_prove_a_later_model(
    exported: ExportedLife, tmp_path: Path
) -> None:
    path = tmp_path / "old.json"
    path.write_bytes(
        lineage_bytes(replace(exported.lineage, handovers=exported.lineage.handovers[:2]))
    )
    files = (exported.model(ROUNDS), exported.certificate(ROUNDS), exported.federation)
    answer = defl("verify", *files, "--lineage", path)

    assert answer.code == 1
    assert "name a newer lineage" in answer.text


def test_a_forged_handover_does_not_prove_a_later_model(
    exported: ExportedLife, tmp_path: Path
) -> None:
    first, second, third = exported.lineage.handovers
    forged = Handover(replace(second.snapshot, state=first.snapshot.state))
    path = tmp_path / "forged.json"
    path.write_bytes(lineage_bytes(replace(exported.lineage, handovers=(first, forged, third))))
    files = (exported.model(ROUNDS), exported.certificate(ROUNDS), exported.federation)
    answer = defl("verify", *files, "--lineage", path)

    assert answer.code == 1
    assert "epoch 1: the state is not the one that the members signed" in answer.text


def test_the_wrong_number_of_files_is_answered_with_both_forms(exported: ExportedLife) -> None:
    for files in ([exported.federation], [exported.federation] * 2, [exported.federation] * 4):
        answer = defl("verify", *files)
        assert answer.code == 2
        assert "or federation.toml alone with --lineage FILE" in answer.text


# --- Exporting and keeping -----------------------------------------------------------------


def test_a_node_that_missed_rounds_completes_its_lineage_from_another_member(
    exported: ExportedLife, tmp_path: Path
) -> None:
    eve = tmp_path / EVE
    shutil.copytree(exported.eve, eve)
    for round_ in (1, 2):
        (eve / ARCHIVE / f"round-{round_}.json").unlink()
    output = tmp_path / "lineage.json"
    refused = defl("export", eve, output, "--lineage")

    assert refused.code == 2
    assert "the certificate of rounds 1 to 2 is missing" in refused.text
    assert "--complete-from FILE" in refused.text
    assert not output.exists()
    completed = defl("export", eve, output, "--lineage", "--complete-from", exported.path)
    assert completed.code == 0, completed.text
    assert api.verify_lineage(output, exported.federation)


def test_a_lineage_is_not_exported_over_a_file_or_with_options_of_a_model(
    exported: ExportedLife, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    path.write_text("mine", encoding="utf-8")

    assert "--force" in defl("export", exported.alice, path, "--lineage").text
    assert path.read_text(encoding="utf-8") == "mine"
    assert "takes no option of a model" in (
        defl("export", exported.alice, tmp_path / "l.json", "--lineage", "--check").text
    )
    assert "add --lineage" in (
        defl("export", exported.alice, path, "--complete-from", exported.path).text
    )


def test_a_node_without_certificates_has_no_lineage(exported: ExportedLife, tmp_path: Path) -> None:
    fresh = tmp_path / "alice"
    shutil.copytree(exported.alice, fresh, ignore=shutil.ignore_patterns(ARCHIVE))

    assert "no round certificate yet" in defl("export", fresh, tmp_path / "l", "--lineage").text


def test_an_archived_file_is_written_once_and_a_damaged_one_is_named(
    exported: ExportedLife, tmp_path: Path
) -> None:
    archive = Archive(tmp_path)
    first = exported.lineage.handovers[0]
    archive.keep_handover(first)
    archive.keep_certificate(0, "first")
    archive.keep_certificate(0, "second")

    assert (archive.folder / "round-0.json").read_text(encoding="utf-8") == "first"
    assert list(archive.handovers()) == [first]
    with pytest.raises(UserError, match=r"round-0.json: not a round certificate"):
        list(archive.certificates())
    path = archive.folder / "handover-0.defl"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"handover-0.defl: damaged"):
        list(archive.handovers())
    shutil.copy(exported.certificate(1), archive.folder / "round-0.json")
    with pytest.raises(UserError, match="the certificate of round 1"):
        list(archive.certificates())


def test_a_node_archives_what_it_is_told(exported: ExportedLife, tmp_path: Path) -> None:
    """All notices of alice's machine, given to the node's own code."""
    shutil.copy(exported.alice / "node.toml", tmp_path)
    shutil.copy(exported.federation, tmp_path)
    alice = exported.churn.participant(0)
    results = Results(
        tmp_path,
        alice,
        Names(alice),
        cast("Blobs", None),  # no model is written here
        Log(),
        Measures(),
        RoundHistory(list(NAMES), alice.federation.committee.members),
    )
    kinds = (RoundProven, Attested, EpochBegan, Finished)
    told = [n for machine, n in exported.churn.notices if machine == 0 and isinstance(n, kinds)]

    async def tell() -> None:
        for notice in told:
            await results.notice(notice)

    asyncio.run(tell())
    answer = defl("export", tmp_path, tmp_path / "lineage.json", "--lineage")

    assert answer.code == 0, answer.text
    again = read_lineage(tmp_path / "lineage.json")
    assert again.certificates == exported.lineage.certificates
    assert again.handovers == exported.lineage.handovers
    assert again.states
