"""A full file system: real ENOSPC errors from SQLite and blob files.

Each scenario runs in a mount namespace of its own with a tiny tmpfs, which needs no privileges
where the kernel allows ordinary users such namespaces; elsewhere it is skipped.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from defl.committee import Timing
from defl.consensus.safety import first_record
from defl.errors import DiskFull
from defl.ids import View
from defl.lab.experiments.processes import CLIENT, Nodes
from defl.node.store.storage import Storage
from defl.output import Persist, StoreChunk
from defl.running import RunProgress, run
from support.builders import Small, name

LIMIT_S = 120.0
NAMESPACES = (("unshare", "-Urm"), ("unshare", "-m"))
BLOCK = 64 * 2**10


def namespace(folder: Path) -> tuple[str, ...]:
    """The command prefix that lets a program mount; skips the test where that is not permitted."""
    folder.mkdir()
    for command in NAMESPACES:
        mounting = [*command, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run(mounting, capture_output=True, check=False).returncode == 0:
                return command
    pytest.skip("mount namespaces are not permitted here")


def tiny_disk(folder: Path, size: str) -> Path:
    folder.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)],  # noqa: S607
        check=True,
    )
    return folder


def fill(disk: Path) -> Path:
    """Fill the disk to the last byte."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (BLOCK, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert os.statvfs(disk).f_bavail == 0
    return filler


# --- Scenarios, each in a process of its own ---------------------------------------------------


def storage_refuses_writes_and_loses_nothing(folder: Path) -> None:
    """Without a reserve, SQLite and the blob files themselves run out of space."""
    small = Small(real=False, values=20_000, chunk_bytes=2**16)
    disk = tiny_disk(folder / "disk", "2m")
    Storage.create(disk / "state", small.federation, (small.initial, small.initial_payload))
    first = first_record(small.epoch, small.genesis_qc)
    records = [
        replace(first, last_voted_view=View(view), high_qc=small.qc(view, name(f"b{view}")))
        for view in range(3)
    ]
    blocks = tuple(small.block((small.upd(0, 1),), view=view) for view in range(1, 100))
    manifest, payload = small.blob(1)
    chunks = [
        StoreChunk(manifest, index, payload[start : start + 2**16])
        for index, start in enumerate(range(0, len(payload), 2**16))
    ]
    with Storage.open(disk / "state", reserve_bytes=0) as storage:
        storage.recovered()
        storage.records.persist(Persist(record=records[1]))
        filler = fill(disk)
        attempts: list[Callable[[], None]] = [
            lambda: storage.records.persist(Persist(record=records[2], blocks=blocks)),
            lambda: storage.blobs.store_chunk(chunks[0]),
            lambda: storage.blobs.store_blob(manifest, payload),
        ]
        # With and without the check of free space, which may be outdated a moment later.
        for checks_first in (True, False):
            for attempt in attempts:
                with pytest.MonkeyPatch.context() as patched:
                    if not checks_first:
                        patched.setattr("defl.node.store.records.require_room", lambda *_: None)
                        patched.setattr("defl.node.store.blobs.require_room", lambda *_: None)
                    with pytest.raises(DiskFull) as full:
                        attempt()
                assert checks_first != ("no room on the disk" in str(full.value))
            assert storage.recovered().record == records[1]
            assert len(storage.recovered().held) == 1  # the initial weights
        filler.unlink()
        for attempt in attempts:
            attempt()
    with Storage.open(disk / "state", reserve_bytes=0) as storage:
        durable = storage.recovered()
        assert durable.record == records[2]
        assert durable.blocks == blocks
        assert manifest.digest in {held.digest for held, _ in durable.held}


def a_node_waits_for_space(folder: Path) -> None:
    """All of one node's files are on the full disk; the others continue, and it recovers."""
    disk = tiny_disk(folder / "node-0", "90m")
    timing = Timing(view_base_s=0.5, gst_lt_min_s=2.0, gst_lt_max_s=30.0, grace_s=60.0)
    nodes = Nodes(folder, 4, 20, timing=timing)  # more than can close while the disk is full
    try:
        nodes.start()
        nodes.wait(lambda: nodes.round(0) >= 1, LIMIT_S)
        filler = fill(disk)
        nodes.wait(lambda: nodes.status(0).disk_full, LIMIT_S)
        before = nodes.status(0)
        nodes.wait(lambda: nodes.round(1) >= before.round + 2, LIMIT_S)
        after = nodes.status(0)
        assert after.disk_full
        assert after.traffic["control"].sent == before.traffic["control"].sent
        filler.unlink()
        nodes.wait(lambda: not nodes.status(0).disk_full, LIMIT_S)
        nodes.finish(LIMIT_S)
        assert nodes.judge() == []
        assert any(line["event"].startswith("there is room") for line in nodes.log(0))
        assert (disk / "model.safetensors").stat().st_size > 0
    finally:
        nodes.close()


def a_run_reports_the_full_disk(folder: Path) -> None:
    """It is reported at once with advice; when there is space again the run continues."""
    disk = tiny_disk(folder / "disk", "90m")
    project = folder / "project"
    project.mkdir()
    text = CLIENT.format(values=1000, seconds=0.0, later_s=0.0)
    (project / "client.py").write_text(text, encoding="utf-8")
    lines: list[str] = []
    fillers: list[Path] = []

    def watch(progress: RunProgress) -> None:
        lines.extend(progress.lines)
        if progress.rounds_closed and not fillers:
            fillers.append(fill(disk))
        if any("DISK FULL" in line for line in progress.lines):
            fillers[0].unlink(missing_ok=True)

    result = run(project, rounds=20, out=disk / "nodes", progress=False, watch=watch)

    assert result.complete
    assert result.agreed
    assert any(line.endswith("Free some space, and it continues") for line in lines)
    assert any(line.endswith("there is room on the disk again") for line in lines)


SCENARIOS = (
    storage_refuses_writes_and_loses_nothing,
    a_node_waits_for_space,
    a_run_reports_the_full_disk,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_full_file_system_loses_nothing(tmp_path: Path, scenario: Callable[[Path], None]) -> None:
    command = namespace(tmp_path / "trial")
    program = [sys.executable, __file__, scenario.__name__, str(tmp_path / "disk")]
    done = subprocess.run(
        [*command, *program], capture_output=True, text=True, timeout=4 * LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    {scenario.__name__: scenario for scenario in SCENARIOS}[sys.argv[1]](Path(sys.argv[2]))
