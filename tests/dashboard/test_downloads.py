"""A round's files from a node's folder: complete, verifiable, and nothing else of the folder."""

import shlex
import shutil
from pathlib import Path

import pytest

from defl.dashboard.downloads import NodeFiles, file_href
from defl.node.report.archive import Archive
from defl.node.report.certificate import read_certificate
from defl.node.report.evidence_file import EVIDENCE
from defl.node.report.model_file import shared_row
from defl.node.report.results import PROVEN
from defl.node.store.storage import BLOBS
from defl.work import model_blob
from support.founding import CommandResult, defl
from support.lineages import ROUNDS, ExportedLife
from test_round_certificate import LAST, Proven, proven  # noqa: F401 - a fixture


@pytest.fixture
def alice(proven: Proven, tmp_path: Path) -> Path:  # noqa: F811 - the fixture
    """A node after the last round: each round's certificate, the proven model, earlier ones as
    blobs."""
    folder = tmp_path / "alice"
    shutil.copytree(proven.folder / "alice", folder)
    shutil.copy(proven.federation, folder)
    archive, blobs = Archive(folder), folder / "state" / BLOBS
    blobs.mkdir(parents=True)
    federation = proven.agreement.federation
    for number in (0, 1, LAST):
        archive.keep_certificate(number, proven.certificate(number).read_text(encoding="utf-8"))
        manifest, payload = model_blob(
            federation, shared_row(proven.model(number), federation.schema)[0]
        )
        (blobs / f"{manifest.digest.hex()}.blob").write_bytes(payload)
    shutil.copy(proven.model(LAST), folder / PROVEN)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportedLife:
    return ExportedLife(tmp_path_factory.mktemp("lived"))


def read(node: Path, name: str) -> bytes | None:
    download = NodeFiles(node, "alice").open(name)
    if download is None:
        return None
    with download.content as file:
        content = file.read()
    assert len(content) == download.size
    return content


def verify_downloads(node: Path, number: int, place: Path) -> CommandResult:
    """Downloads what is offered and runs the command that is shown."""
    place.mkdir()
    files, command = NodeFiles(node, "alice").of_round(number)
    for file in files:
        content = read(node, file.name)
        assert content is not None
        assert file.size in (None, len(content))
        (place / file.name).write_bytes(content)
    program, *words = shlex.split(command)
    assert program == "defl"
    return defl(*(place / word if "." in word else word for word in words))


# --- What is offered verifies --------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, LAST])
def test_the_files_of_every_kept_round_verify_with_the_command_shown(
    alice: Path, tmp_path: Path, number: int
) -> None:
    answer = verify_downloads(alice, number, tmp_path / "downloads")

    assert answer.code == 0, answer.text
    assert answer.text.endswith("proven\n")


def test_a_model_made_from_a_blob_has_the_bytes_that_the_node_wrote(
    alice: Path,
    proven: Proven,  # noqa: F811 - the fixture
) -> None:
    assert read(alice, "round-1.safetensors") == proven.model(1).read_bytes()
    assert read(alice, f"round-{LAST}.safetensors") == proven.model(LAST).read_bytes()


@pytest.mark.slow
def test_a_model_of_a_later_epoch_comes_with_the_lineage(
    exported: ExportedLife, tmp_path: Path
) -> None:
    shutil.copy(exported.model(ROUNDS), exported.alice / PROVEN)
    files, command = NodeFiles(exported.alice, "alice").of_round(ROUNDS)

    assert [file.name for file in files][-1] == "lineage.json"
    assert command.endswith(" --lineage lineage.json")
    assert read(exported.alice, "lineage.json") == exported.path.read_bytes()
    answer = verify_downloads(exported.alice, ROUNDS, tmp_path / "downloads")
    assert answer.code == 0, answer.text


@pytest.mark.slow
def test_the_lineage_of_a_late_joiner_proves_its_models_too(
    exported: ExportedLife, tmp_path: Path
) -> None:
    """Its folder lacks early certificates, so `defl export --lineage` refuses it."""
    shutil.copy(exported.model(ROUNDS), exported.eve / PROVEN)

    assert verify_downloads(exported.eve, ROUNDS, tmp_path / "downloads").code == 0


# --- What is not there ---------------------------------------------------------------------------


def test_an_unproven_round_has_no_files_and_no_command(alice: Path) -> None:
    assert NodeFiles(alice, "alice").of_round(LAST + 1) == ([], "")
    assert read(alice, f"round-{LAST + 1}.safetensors") is None


def test_a_round_whose_model_was_dropped_offers_its_certificate_alone(alice: Path) -> None:
    shutil.rmtree(alice / "state")
    files, command = NodeFiles(alice, "alice").of_round(1)

    assert [file.name for file in files] == ["round-1-certificate.json", "federation.toml"]
    assert command == ""
    assert read(alice, "round-1.safetensors") is None


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_blob_that_the_node_overwrites_meanwhile_is_not_sent(
    alice: Path, damage: bytes | None
) -> None:
    certificate = read_certificate(alice / "certificates" / "round-1.json")
    blob = alice / "state" / BLOBS / f"{certificate.digest}.blob"
    content = blob.read_bytes()
    blob.write_bytes(bytes(len(content)) if damage is None else damage)

    assert read(alice, "round-1.safetensors") is None


def test_a_model_file_of_another_round_is_not_sent_under_this_name(
    alice: Path,
    proven: Proven,  # noqa: F811 - the fixture
) -> None:
    shutil.rmtree(alice / "state")
    shutil.copy(proven.model(1), alice / PROVEN)

    assert read(alice, f"round-{LAST}.safetensors") is None
    assert read(alice, "round-1.safetensors") == proven.model(1).read_bytes()


def test_an_open_download_survives_the_nodes_next_model(
    alice: Path,
    proven: Proven,  # noqa: F811 - the fixture
) -> None:
    download = NodeFiles(alice, "alice").open(f"round-{LAST}.safetensors")
    assert download is not None
    shutil.copy(proven.model(1), alice / "next")
    (alice / "next").replace(alice / PROVEN)

    with download.content as file:
        assert file.read() == proven.model(LAST).read_bytes()


def test_downloads_leave_nothing_behind_and_change_nothing(
    alice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    before = {path: path.stat().st_mtime_ns for path in alice.rglob("*")}
    read(alice, "round-1.safetensors")

    assert list(place.iterdir()) == []
    assert {path: path.stat().st_mtime_ns for path in alice.rglob("*")} == before


# --- Names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "node.key",
        "node.toml",
        "telemetry.token",
        "../alice/node.key",
        "evidence-../../node.key",
        "round-01.safetensors",
        "round--1.safetensors",
        "round-1.safetensors\n",
        "round-\u0661.safetensors",
        f"round-{10**18}.safetensors",
        "ROUND-1.safetensors",
        "lineage.json",  # no epoch has ended
        "",
    ],
)
def test_no_other_file_of_the_folder_is_sent(alice: Path, name: str) -> None:
    assert read(alice, name) is None


def test_evidence_is_sent_by_its_exact_name(alice: Path) -> None:
    assert read(alice, "evidence-mallory-vote-212.json") is None
    (alice / EVIDENCE).mkdir()
    (alice / EVIDENCE / "evidence-mallory-vote-212.json").write_bytes(b"{}")

    assert read(alice, "evidence-mallory-vote-212.json") == b"{}"
    assert read(alice, "evidence-mallory-vote-21.json") is None


def test_hostile_names_are_quoted_in_addresses() -> None:
    assert file_href("a/<b>", "federation.toml") == "/files/a%2F%3Cb%3E/federation.toml"


def test_a_folder_that_is_gone_has_no_files(tmp_path: Path) -> None:
    assert read(tmp_path / "gone", "federation.toml") is None
    assert NodeFiles(tmp_path / "gone", "alice").of_round(1) == ([], "")
