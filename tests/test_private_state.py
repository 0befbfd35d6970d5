"""A node's state belongs to it alone: it deletes no other file, and no other user can read it."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from defl.clients.protocol import schema_of
from defl.errors import UserError
from defl.ids import Round
from defl.node.report.results import CERTIFICATE, MODEL, PROVEN, Results
from defl.node.setup.local import founding_folder
from defl.node.store import private
from defl.node.store.storage import Storage
from defl.node.work.local_entries import LOCAL_FILE, write_local
from defl.output import Persist, Train
from support.doors import Doors, failed_checks
from support.founding import defl
from support.stores import SMALL, chunks_of, create_state, new_storage, record
from support.workers import bench, run, write_client

FOREIGN = ("thesis.tex", "holiday.new", "model.blob", "notes.manifest", "output", ".hidden.part")


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    doors = Doors(tmp_path)
    yield doors
    doors.close()


def foreign_folder(folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    for name in FOREIGN:
        (folder / name).write_bytes(name.encode())
    return content(folder)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def modes(state: Path) -> dict[str, int]:
    paths = [state, *state.rglob("*")]
    return {str(path.relative_to(state)): stat.S_IMODE(path.lstat().st_mode) for path in paths}


def expose(state: Path) -> None:
    """Give the state the modes that older versions left outside the node's folder."""
    for path in (state, *state.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture(params=[0o022, 0o000, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


# --- What is deleted -------------------------------------------------------------------------


@pytest.mark.parametrize("linked", ["", "blobs", "work"], ids=["state", "blobs", "work"])
def test_a_link_in_place_of_a_folder_is_refused_and_nothing_behind_it_is_deleted(
    tmp_path: Path, linked: str
) -> None:
    state = create_state(tmp_path / "state")
    real = tmp_path / "elsewhere"
    (state / linked).rename(real)
    for name in FOREIGN:
        (real / name).write_bytes(name.encode())
    before = content(real)
    (state / linked).symlink_to(real)

    with pytest.raises(UserError, match=r"is a link, .* as `state` in node\.toml"):
        Storage.open(state).recovered()

    assert content(real) == before


def test_a_new_state_is_not_made_behind_a_link(tmp_path: Path) -> None:
    before = foreign_folder(tmp_path / "real")
    (tmp_path / "state").symlink_to(tmp_path / "real")

    with pytest.raises(UserError, match="is a link"):
        create_state(tmp_path / "state")

    assert content(tmp_path / "real") == before


@pytest.mark.parametrize("inside", ["blobs", "work"])
def test_a_start_deletes_no_file_that_is_not_named_like_its_own(
    tmp_path: Path, inside: str
) -> None:
    state = create_state(tmp_path / "state")
    before = foreign_folder(tmp_path / "mine")
    shutil.copytree(tmp_path / "mine", state / inside, dirs_exist_ok=True)
    (state / inside / "folder.new").mkdir()
    digest = SMALL.blob(1)[0].digest.hex()
    (state / inside / f"{digest}.blob.new").symlink_to(tmp_path / "mine" / FOREIGN[0])

    with Storage.open(state) as storage:
        assert storage.recovered() == SMALL.durable()
        reported = [fault for fault in storage.faults if "are left alone" in fault]

    assert before.items() <= content(state / inside).items()
    assert (state / inside / "folder.new").is_dir()
    assert len(reported) == (inside == "blobs")
    assert content(tmp_path / "mine") == before


def test_a_link_named_like_a_chunk_file_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "thesis.tex"
    target.write_bytes(b"mine")
    with new_storage(tmp_path / "state") as storage:
        manifest, payload = SMALL.blob(1)
        for kind in ("blob", "part", "part.new", "manifest.new"):
            (storage.folder / "blobs" / f"{manifest.digest.hex()}.{kind}").symlink_to(target)
        storage.recovered()
        for chunk in chunks_of((manifest, payload)):
            storage.blobs.store_chunk(chunk)

        assert bytes(storage.blobs.read(manifest.digest)) == payload
    assert target.read_bytes() == b"mine"


def test_a_hard_link_to_a_blob_keeps_its_bytes_when_the_blob_is_dropped(tmp_path: Path) -> None:
    """A spare file would be overwritten with the next blob."""
    with new_storage(tmp_path / "state") as storage:
        first, second = SMALL.blob(1), SMALL.blob(2)
        for chunk in chunks_of(first):
            storage.blobs.store_chunk(chunk)
        copy = tmp_path / "copy"
        copy.hardlink_to(storage.blobs.path(first[0].digest))
        storage.blobs.drop(first[0].digest)
        for chunk in chunks_of(second):
            storage.blobs.store_chunk(chunk)

    assert copy.read_bytes() == first[1]


def test_a_model_that_is_proven_twice_is_not_overwritten_by_its_certificate(
    tmp_path: Path,
) -> None:
    (tmp_path / MODEL).write_bytes(b"a model")
    results = Results.__new__(Results)
    results._folder, results._written = tmp_path, SMALL.initial.digest

    for text in ("first certificate", "second certificate"):
        results._write_certificate(text, SMALL.initial.digest)

    assert (tmp_path / MODEL).read_bytes() == (tmp_path / PROVEN).read_bytes() == b"a model"
    assert (tmp_path / CERTIFICATE).read_text(encoding="utf-8") == "second certificate"


def test_a_failed_founding_deletes_a_link_and_not_what_is_behind_it(tmp_path: Path) -> None:
    before = foreign_folder(tmp_path / "mine")

    def fail() -> None:
        with founding_folder(tmp_path / "out", "defl-run-", lambda _: None) as folder:
            (folder / "data").symlink_to(tmp_path / "mine")
            raise UserError("failed")

    with pytest.raises(UserError, match="failed"):
        fail()

    assert not (tmp_path / "out").exists()
    assert content(tmp_path / "mine") == before


# --- Who may read it -------------------------------------------------------------------------


def test_only_its_owner_can_read_a_state_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    state = tmp_path / "made" / "on the way" / "state"
    create_state(state)
    created = modes(state)
    with Storage.open(state, reserve_bytes=0) as storage:
        storage.recovered()
        assert storage.notes == ()
        storage.records.persist(Persist(record=record(3)))
        storage.blobs.store_blob(*SMALL.blob(1))
        storage.blobs.store_chunk(chunks_of(SMALL.blob(2))[0])
        found = modes(state)

    for made in (created, found):
        assert {name for name, mode in made.items() if mode & 0o077} == set(), oct(umask)
    assert {"state.db-wal", "blobs"} < set(found)
    assert stat.S_IMODE(state.parent.stat().st_mode) == 0o700


def test_only_its_owner_can_read_what_the_workers_write_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    project = write_client(tmp_path / "project")

    async def scenario() -> None:
        async with bench(project) as b:
            await b.worker.start()
            await b.worker.run(Train(Round(1), b.base), b.paths)
            found = modes(b.worker._work.parent)
            assert {"work", "work/output-0", "worker.log", "arithmetic.log"} <= set(found)
            assert not any(mode & 0o077 for mode in found.values()), oct(umask)

    run(scenario())


def test_local_entries_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    local = {"steps": np.zeros(1, np.int64)}
    schema = schema_of({"point": np.zeros(1, np.float32), **local}, {})
    write_local(tmp_path / LOCAL_FILE, schema, local)

    assert private.open_to_others(tmp_path / LOCAL_FILE) == 0, oct(umask)


def test_a_state_that_others_can_read_is_named_by_the_check_and_closed_by_a_start(
    doors: Doors, tmp_path: Path
) -> None:
    """An older version made it so, and a state outside the node's folder is not guarded by that."""
    outside = tmp_path / "big disk" / "alice"
    path = doors.alice / "node.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('state = "state"', f'state = "{outside}"'), encoding="utf-8")
    Storage.create(outside, doors.agreement.federation, None)
    assert failed_checks(doors.alice, "--no-peers") == {}
    expose(outside)

    failed = failed_checks(doors.alice, "--no-peers")
    assert (
        f"(mode 0755), but it holds all members' updates; do: chmod -R go= {outside}"
        in (failed["state folder"])
    )

    with Storage.open(outside) as storage:
        storage.recovered()
        (note,) = storage.notes
    assert "other users could read" in note
    assert not any(mode & 0o077 for mode in modes(outside).values())
    assert failed_checks(doors.alice, "--no-peers") == {}
    with Storage.open(outside) as storage:
        storage.recovered()
        assert storage.notes == ()


def test_the_check_names_a_link_and_a_start_refuses_it(doors: Doors, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (doors.alice / "state").symlink_to(tmp_path / "real")

    assert "is a link" in failed_checks(doors.alice, "--no-peers")["state folder"]
    refused = defl("node", "start", doors.alice)
    assert refused.code == 2
    assert "is a link" in refused.text
    assert list((tmp_path / "real").iterdir()) == []


def test_an_empty_disk_of_its_own_is_closed_to_others(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    (disk / "lost+found").mkdir(parents=True)
    disk.chmod(0o755)

    create_state(disk)

    assert stat.S_IMODE(disk.stat().st_mode) == 0o700


def test_an_open_folder_with_other_files_is_refused_and_its_mode_is_kept(tmp_path: Path) -> None:
    """Somebody else may need what is in it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "thesis.tex").touch()
    shared.chmod(0o755)

    with pytest.raises(UserError, match=r"also holds thesis\.tex.*chmod 700"):
        create_state(shared)

    assert stat.S_IMODE(shared.stat().st_mode) == 0o755
    assert [path.name for path in shared.iterdir()] == ["thesis.tex"]

    shared.chmod(0o700)
    create_state(shared)
    shared.chmod(0o750)
    with (
        Storage.open(shared) as storage,
        pytest.raises(UserError, match=r"mode 0750.*name a folder for the state alone"),
    ):
        storage.recovered()


@pytest.mark.parametrize("how", ["refused", "ignored"])
def test_a_state_that_cannot_be_closed_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Another user's files refuse a new mode; file systems without modes ignore it."""
    state = create_state(tmp_path / "state")
    expose(state)

    def chmod(path: Path, mode: int) -> None:
        if how == "refused":
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(private.Path, "chmod", chmod)
    advice = {"refused": "with chown", "ignored": "a folder on another disk"}[how]
    with Storage.open(state) as storage, pytest.raises(UserError, match=advice):
        storage.recovered()


def test_the_own_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    """Taking it empties the file."""
    state = create_state(tmp_path / "state")
    target = tmp_path / "thesis.tex"
    target.write_bytes(b"mine")
    (state / "lock").unlink()
    (state / "lock").symlink_to(target)

    with pytest.raises(Exception, match="lock"):
        Storage.open(state)

    assert target.read_bytes() == b"mine"


def test_rounds_go_on_after_a_start_that_closed_the_state(tmp_path: Path) -> None:
    state = create_state(tmp_path / "state")
    expose(state)
    with Storage.open(state, reserve_bytes=0) as storage:
        storage.recovered()
        for chunk in chunks_of(SMALL.blob(1)):
            storage.blobs.store_chunk(chunk)
        storage.records.persist(Persist(record=record(2), model=(Round(1), SMALL.blob(1)[0])))
    with Storage.open(state) as storage:
        assert storage.recovered().record == record(2)
        assert storage.faults == ()
