"""For tests of storage: a small node's records and blobs in real files."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from defl.consensus.safety import first_record
from defl.ids import View
from defl.messages import Manifest
from defl.node.store.records import DATABASE
from defl.node.store.storage import Storage
from defl.output import Durable, SafetyRecord, StoreChunk
from support.builders import Small, name

SMALL = Small(real=False)
CHUNK = SMALL.federation.chunk_bytes


def create_state(folder: Path) -> Path:
    Storage.create(folder, SMALL.federation, (SMALL.initial, SMALL.initial_payload))
    return folder


@contextmanager
def new_storage(folder: Path) -> Iterator[Storage]:
    with Storage.open(create_state(folder), reserve_bytes=0) as opened:
        opened.recovered()
        yield opened


def reopened(storage: Storage) -> Durable:
    """The state that a new process recovers."""
    storage.close()
    with Storage.open(storage.folder) as again:
        return again.recovered()


def record(view: int) -> SafetyRecord:
    first = first_record(SMALL.epoch, SMALL.genesis_qc)
    return replace(first, last_voted_view=View(view), high_qc=SMALL.qc(view, name(f"b{view}")))


def chunks_of(blob: tuple[Manifest, bytes]) -> list[StoreChunk]:
    manifest, payload = blob
    return [
        StoreChunk(manifest, index, payload[index * CHUNK : (index + 1) * CHUNK])
        for index in range(len(manifest.chunks))
    ]


def spoil(folder: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(folder / DATABASE) as database:
        assert database.execute(statement, values).rowcount > 0
    database.close()
