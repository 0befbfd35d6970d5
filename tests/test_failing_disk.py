"""A quota is waited out like a full disk, and of several faults the first one is reported."""

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from defl.committee import Timing
from defl.errors import DiskFull, LocalFault
from defl.lab.experiments.processes import Nodes
from defl.node.store import disk, mark
from defl.node.store.mark import Mark
from defl.node.store.records import DATABASE
from defl.node.store.storage import Storage
from defl.output import Persist
from support.in_process_node import InProcessNode, until
from support.stores import SMALL, chunks_of, create_state, new_storage, record

LIMIT_S = 120.0


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with new_storage(tmp_path / "state") as opened:
        yield opened


@contextlib.contextmanager
def sqlite_cannot_write(storage: Storage) -> Iterator[None]:
    """SQLite gets a real error of the system for its next page."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (storage.folder / f"{DATABASE}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def refusing(code: int) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


def is_older_than_its_mark(storage: Storage) -> bool:
    return storage.records._writes_lost > 0


# --- A quota ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.ENOSPC])
def test_a_record_that_a_quota_refuses_is_written_later_and_nothing_is_lost(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    storage.records.persist(Persist(record=record(1)))
    with monkeypatch.context() as patched, sqlite_cannot_write(storage):
        patched.setattr(disk.os, "pwrite", refusing(code))
        for _ in range(3):
            with pytest.raises(DiskFull, match="no room on the disk to persist"):
                storage.records.persist(Persist(record=record(2)))
    assert storage.records.recovered().record == record(1)

    storage.records.persist(Persist(record=record(2)))
    storage.close()
    with Storage.open(storage.folder) as again:
        assert again.recovered().record == record(2)
        assert not is_older_than_its_mark(again)


def test_a_write_error_without_a_quota_ends_the_node(storage: Storage) -> None:
    storage.records.persist(Persist(record=record(1)))
    with sqlite_cannot_write(storage), pytest.raises(LocalFault) as failed:
        storage.records.persist(Persist(record=record(2)))

    assert not isinstance(failed.value, DiskFull)
    assert list(storage.folder.glob("tmp*")) == [], "the probe leaves nothing"


def test_a_failed_sync_is_never_taken_for_a_lack_of_room(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may have thrown the bytes away, and reports that once."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC

    class Database:
        in_transaction = False

        def execute(self, *_: object) -> None:
            raise error

    real = storage.records._database
    storage.records._database = Database()  # type: ignore[assignment]
    with monkeypatch.context() as patched:
        patched.setattr(disk.os, "pwrite", refusing(errno.EDQUOT))
        with pytest.raises(LocalFault) as failed:
            storage.records.persist(Persist(record=record(2)))
    storage.records._database = real

    assert not isinstance(failed.value, DiskFull)


# While FLAG exists, every write to a file in FOLDER exceeds the quota.
QUOTA = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/types.h>

static int refused(int fd) {
    char link[64], path[4096];
    const char *folder = getenv("QUOTA_FOLDER"), *flag = getenv("QUOTA_FLAG");
    if (!folder || !flag || access(flag, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    if (refused(fd)) { errno = EDQUOT; return -1; }
    return real(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return pwrite64(fd, data, size, at);
}
ssize_t write(int fd, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    if (refused(fd)) { errno = EDQUOT; return -1; }
    return real(fd, data, size);
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    static int (*real)(int, off64_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "posix_fallocate64");
    return refused(fd) ? EDQUOT : real(fd, at, size);
}
int posix_fallocate(int fd, off_t at, off_t size) { return posix_fallocate64(fd, at, size); }
"""


@pytest.mark.slow
def test_a_node_beyond_its_quota_waits_and_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library, flag = (tmp_path / name for name in ("quota.c", "quota.so", "flag"))
    source.write_text(QUOTA, encoding="ascii")
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    timing = Timing(view_base_s=0.5, gst_lt_min_s=2.0, gst_lt_max_s=30.0, grace_s=60.0)
    nodes = Nodes(tmp_path / "nodes", 4, 12, timing=timing)
    monkeypatch.setenv("QUOTA_FOLDER", f"{tmp_path / 'nodes' / 'node-0' / 'state'}/")
    monkeypatch.setenv("QUOTA_FLAG", str(flag))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    try:
        nodes.start()
        nodes.wait(lambda: nodes.round(0) >= 1, LIMIT_S)
        flag.touch()
        nodes.wait(lambda: nodes.status(0).disk_full, LIMIT_S)
        before = nodes.round(1)
        nodes.wait(lambda: nodes.round(1) >= before + 2, LIMIT_S)
        assert nodes.status(0).disk_full
        flag.unlink()
        nodes.wait(lambda: not nodes.status(0).disk_full, LIMIT_S)
        nodes.finish(LIMIT_S)
        assert nodes.judge() == []
    finally:
        nodes.close()


# --- Which fault is reported -----------------------------------------------------------------


def test_the_fault_that_ended_a_node_is_its_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails once fails again when the state is closed."""
    here = InProcessNode(Nodes(tmp_path / "federation", 4, 1).local.nodes[0])

    def refuse_to_sync(_: Mark) -> None:
        raise LocalFault("a later fault")

    async def scenario() -> None:
        async with here.running():
            await until(lambda: not here.node._driver._over)  # it runs
            monkeypatch.setattr(Mark, "sync", refuse_to_sync)
            here.node.writing._fail(LocalFault("the first fault"))
            await until(lambda: here.logged("stopped"))

    with pytest.raises(LocalFault, match="the first fault"):
        asyncio.run(scenario())
    assert [line["why"] for line in here.logged("state not closed cleanly")] == ["a later fault"]
    assert here.logged("stopped")


def test_a_state_that_cannot_be_closed_after_a_clean_stop_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = InProcessNode(Nodes(tmp_path / "federation", 4, 1).local.nodes[0])

    def refuse_to_sync(_: Mark) -> None:
        raise LocalFault("the only fault")

    async def scenario() -> None:
        async with here.running():
            monkeypatch.setattr(Mark, "sync", refuse_to_sync)

    with pytest.raises(LocalFault, match="the only fault"):
        asyncio.run(scenario())


def test_an_error_in_a_block_is_not_hidden_by_closing_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = create_state(tmp_path / "state")

    def fail() -> None:
        with Storage.open(state):
            monkeypatch.setattr(mark.os, "fsync", refusing(errno.EIO))
            raise LocalFault("the first fault")

    with pytest.raises(LocalFault, match="the first fault"):
        fail()


@pytest.mark.parametrize("own", [True, False], ids=["own blob", "another's chunk"])
def test_cleaning_up_after_a_failed_write_does_not_hide_why_it_failed(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    blob = SMALL.blob(1)
    write = (
        partial(storage.blobs.store_blob, *blob)
        if own
        else partial(storage.blobs.store_chunk, chunks_of(blob)[0])
    )
    with monkeypatch.context() as patched:
        patched.setattr(disk.os, "pwrite", refusing(errno.EIO))
        patched.setattr(Path, "unlink", refusing(errno.EROFS))
        with pytest.raises(LocalFault, match="Input/output error"):
            write()


# --- A lost database -------------------------------------------------------------------------


def test_an_emptied_database_is_refused_with_advice_and_its_log_is_kept(tmp_path: Path) -> None:
    state = create_state(tmp_path / "state")
    storage = Storage.open(state, reserve_bytes=0)
    storage.records.persist(Persist(record=record(1)))
    log = (state / f"{DATABASE}-wal").read_bytes()  # as after a kill
    storage.close()
    (state / f"{DATABASE}-wal").write_bytes(log)
    (state / DATABASE).write_bytes(b"")

    with pytest.raises(LocalFault, match=r"is empty: .* never restore an older copy.*--observer"):
        Storage.open(state)

    assert (state / f"{DATABASE}-wal").read_bytes() == log
    assert (state / DATABASE).read_bytes() == b""


def test_a_database_without_its_table_is_refused_with_advice(tmp_path: Path) -> None:
    state = create_state(tmp_path / "state")
    (state / DATABASE).unlink()
    with contextlib.closing(sqlite3.connect(state / DATABASE)) as other:
        other.execute("CREATE TABLE thesis (chapter TEXT)")

    with pytest.raises(LocalFault, match="never restore an older copy"):
        Storage.open(state)
