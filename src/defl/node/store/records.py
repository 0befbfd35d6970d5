"""The small records that a node must not lose: what it signed, its log, and which blobs matter.

A persist is one SQLite transaction, synced before it returns. Every record carries a checksum over
itself and its place, so reading returns what was persisted or names what is damaged. A database
that has lost writes (`mark.py` detects it) returns a safety record that signs nothing any more.
`output.Persist` says what is kept and what is forgotten. Handovers are kept for ever.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from defl.committee import Federation, Membership
from defl.contacts import Former
from defl.errors import LocalFault
from defl.ids import Digest, Round, digest_of
from defl.messages import (
    Attestation,
    Block,
    Evidence,
    Handover,
    Manifest,
    Offer,
    Snapshot,
    StoreAck,
)
from defl.node.store.database import NO_OLD_COPY, connect, database_faults, transaction
from defl.node.store.disk import disk_faults, require_room, sync_folder
from defl.node.store.mark import Mark
from defl.node.store.private import create_file
from defl.output import ClosedRound, Durable, Persist, SafetyRecord, Switch
from defl.participant_parts import first_record_of

DATABASE = "state.db"
MARK = "mark"  # the number of writes that the database has taken

_TABLE = """
CREATE TABLE records (
    kind TEXT NOT NULL,
    slot BLOB NOT NULL,       -- what it is about: one record of a kind for each
    number INTEGER NOT NULL,  -- height or round, by which it is forgotten
    data BLOB NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (kind, slot)
);
CREATE INDEX by_number ON records (kind, number);
"""
_PUT = """
INSERT INTO records (kind, slot, number, data, checksum) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (kind, slot) DO UPDATE
SET number = excluded.number, data = excluded.data, checksum = excluded.checksum
"""
_DELETE = "DELETE FROM records WHERE kind = ?"
_FORGET = "DELETE FROM records WHERE kind = ? AND number <= ?"
_ALL = "SELECT slot, number, data, checksum FROM records WHERE kind = ? ORDER BY rowid"
_NUMBERED = "SELECT slot, number, data, checksum FROM records WHERE kind = ? AND number = ?"
# They belong to one epoch and must not be seen in the next.
_OF_ONE_EPOCH = ("safety", "block", "snapshot", "ack", "offer", "attestation")

T = TypeVar("T")
Row = tuple[str, bytes, int, bytes, bytes]


class Facts(Struct, frozen=True, array_like=True):
    """The federation that the records belong to; it never changes."""

    chain: Digest  # of its origin
    epoch: int  # the origin's
    chunk_bytes: int


class Entered(Struct, frozen=True, array_like=True):
    """The present epoch: a Switch without its handover, which has a record of its own."""

    membership: Membership
    closed: tuple[ClosedRound, ...]
    former: tuple[Former, ...]


class Records:
    """The records in one node's folder; safe to call from several threads."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._lock = threading.RLock()
        self._database = connect(folder / DATABASE)
        try:
            self.facts = self._read_facts()
            counted = self._one("writes", int)  # None: written by a version without a mark
            self._mark = Mark(folder / MARK)
        except LocalFault:
            self._database.close()
            raise
        marked = self._mark.read()
        self.fault: str | None = None  # damage that does not stop the node
        if marked is None and counted is not None:
            self.fault = (
                f"{folder / MARK} is missing or damaged: it cannot show whether {DATABASE} has "
                "lost writes this time; it is written again"
            )
        self._writes = max(counted or 0, marked or 0)
        self._writes_lost = self._writes - (counted or 0)

    @staticmethod
    def create(
        folder: Path, federation: Federation, initial: Manifest | None, *, observing: str | None
    ) -> None:
        """Write the database under another name first: it exists with its first record or not at
        all. Delete the files of a lost database before: SQLite would read its log into this one.
        """
        new = folder / f"{DATABASE}.new"
        record = replace(first_record_of(federation), observing=observing)
        model = None if initial is None else (Round(0), initial)
        facts = Facts(federation.chain, federation.epoch, federation.chunk_bytes)
        rows: Iterable[Row] = (
            _row("facts", b"", 0, facts),
            _row("writes", b"", 0, 0),
            *_rows(Persist(record=record, model=model)),
        )
        action = f"create {folder / DATABASE}"
        with disk_faults(action), database_faults(action):
            new.unlink(missing_ok=True)
            create_file(new).close()  # SQLite gives its logs the mode of the database
            database = sqlite3.connect(new, isolation_level=None)
            try:
                database.execute("PRAGMA synchronous = FULL")
                database.executescript(_TABLE)
                with transaction(database):
                    database.executemany(_PUT, rows)
            finally:
                database.close()
            for leftover in (f"{DATABASE}-wal", f"{DATABASE}-shm", MARK):
                (folder / leftover).unlink(missing_ok=True)
            mark = Mark(folder / MARK)
            mark.write(0)
            mark.close()
            new.replace(folder / DATABASE)
            sync_folder(folder)
            sync_folder(folder.parent)

    def close(self) -> None:
        with self._lock:
            self._database.close()
            self._mark.close()

    def persist(self, *persists: Persist) -> None:
        """Write all of them, in this order, or none; synced on return."""
        changes = [
            (list(_ends(persist)), list(_rows(persist)), list(_forgets(persist)))
            for persist in persists
        ]
        size = sum(len(row[3]) for _, rows, _ in changes for row in rows)
        with self._lock:
            require_room(self._folder, size, self._reserve_bytes)
            writes = self._writes + 1
            written = (self._folder, size)
            with database_faults("persist", written), transaction(self._database):
                for ends, rows, forgets in changes:
                    self._database.executemany(_DELETE, ends)
                    self._database.executemany(_PUT, rows)
                    self._database.executemany(_FORGET, forgets)
                self._database.execute(_PUT, _row("writes", b"", 0, writes))
            self._writes = writes
            self._mark.write(writes)  # only now: a mark ahead of the database means lost writes

    def observe(self, reason: str) -> None:
        """From now on this node signs nothing, even after a restart."""
        with self._lock:
            record = self._one("safety", SafetyRecord)
            if record is not None and record.observing is None:
                self.persist(Persist(record=replace(record, observing=reason)))

    def recovered(self) -> Durable:
        """Everything that was persisted: first the signing record, then the log; no blobs."""
        with self._lock:
            if self._writes_lost:
                self.observe(
                    f"{self._folder / DATABASE} is older than its high-water mark: "
                    f"{self._writes_lost} of its writes are lost (an old copy, or one without its "
                    "-wal file), so what this node signed is not known"
                )
            return Durable(
                record=self._one("safety", SafetyRecord),
                snapshot=self._one("snapshot", Snapshot),
                blocks=tuple(self._many("block", Block)),
                acks=tuple(self._many("ack", StoreAck)),
                offers=tuple(self._many("offer", Offer)),
                models=tuple(self._many("model", tuple[Round, Manifest])),
                evidence=tuple(self._many("evidence", Evidence)),
                attestations=tuple(self._many("attestation", Attestation)),
                switch=self._switch(),
            )

    def handover(self, epoch: int) -> Handover | None:
        """How this epoch ended; None if this node does not know."""
        with self._lock, database_faults("read a handover"):
            row = self._database.execute(_NUMBERED, ("handover", epoch)).fetchone()
        return None if row is None else self._checked("handover", row, Handover)

    def handovers(self) -> Iterator[Handover]:
        """All of them, from epoch 0 on, one at a time: together they may be large."""
        epoch = self.facts.epoch
        while (handover := self.handover(epoch)) is not None:
            yield handover
            epoch += 1

    def _switch(self) -> Switch | None:
        entered = self._one("epoch", Entered)
        if entered is None:
            return None
        handover = self.handover(entered.membership.epoch - 1)
        if handover is None:
            raise LocalFault(
                f"{self._folder / DATABASE} has lost the handover to epoch "
                f"{entered.membership.epoch}; {NO_OLD_COPY}"
            )
        return Switch(entered.membership, entered.closed, entered.former, handover)

    @property
    def bytes_used(self) -> int:
        files = (self._folder / f"{DATABASE}{suffix}" for suffix in ("", "-wal", "-shm"))
        return sum(file.stat().st_size for file in files if file.exists())

    def _read_facts(self) -> Facts:
        facts = self._one("facts", Facts)
        if facts is None:
            raise LocalFault(
                f"{self._folder / DATABASE} does not say which federation it is of; {NO_OLD_COPY}"
            )
        return facts

    def _one(self, kind: str, type_: type[T]) -> T | None:
        return next(iter(self._many(kind, type_)), None)

    def _many(self, kind: str, type_: type[T]) -> list[T]:
        with database_faults(f"read the records of kind {kind!r}"):
            rows = self._database.execute(_ALL, (kind,)).fetchall()
        return [self._checked(kind, row, type_) for row in rows]

    def _checked(self, kind: str, row: tuple[Any, ...], type_: type[T]) -> T:
        slot, number, data, checksum = row
        which = slot.hex() if isinstance(slot, bytes) else repr(slot)
        where = f"the {kind} record {which or '(only one)'} in {self._folder / DATABASE}"
        if checksum != _checksum(kind, slot, number, data):
            raise LocalFault(f"{where} is corrupt: its checksum does not match; {NO_OLD_COPY}")
        try:
            return msgspec.msgpack.decode(data, type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LocalFault(f"{where} cannot be read by this version: {error}") from error


# --- What a persist changes ------------------------------------------------------------------


def _ends(persist: Persist) -> Iterator[tuple[str]]:
    """The kinds of which nothing older than this persist is kept."""
    if persist.switch is not None:
        for kind in _OF_ONE_EPOCH:
            yield (kind,)


def _rows(persist: Persist) -> Iterator[Row]:
    if persist.switch is not None:
        yield from _switch_rows(persist.switch)
    if persist.record is not None:
        yield _row("safety", b"", 0, persist.record)
    for block in persist.blocks:
        yield _row("block", block.id, block.height, block)
    if persist.snapshot is not None:
        yield _row("snapshot", b"", persist.snapshot.block.height, persist.snapshot)
    for ack in persist.acks:
        yield _row("ack", _encoded((ack.round, ack.author)), ack.round, ack)
    if persist.offer is not None:
        yield _row("offer", _encoded(persist.offer.round), persist.offer.round, persist.offer)
    if persist.model is not None:
        yield _row("model", _encoded(persist.model[0]), persist.model[0], persist.model)
    for evidence in persist.evidence:
        yield _row("evidence", digest_of(_encoded(evidence)), 0, evidence)
    for attestation in persist.attestations:
        slot = _encoded((attestation.round, attestation.author))
        yield _row("attestation", slot, attestation.round, attestation)


def _switch_rows(switch: Switch) -> Iterator[Row]:
    entered = Entered(switch.membership, switch.closed, switch.former)
    yield _row("epoch", b"", switch.membership.epoch, entered)
    ended = switch.handover.epoch
    yield _row("handover", _encoded(ended), ended, switch.handover)


def _forgets(persist: Persist) -> Iterator[tuple[str, int]]:
    if persist.snapshot is not None:
        yield "block", persist.snapshot.block.height
    if persist.forget_round is not None:
        for kind in ("ack", "offer", "model"):
            yield kind, persist.forget_round


def _row(kind: str, slot: bytes, number: int, value: object) -> Row:
    data = _encoded(value)
    return kind, slot, number, data, _checksum(kind, slot, number, data)


def _checksum(kind: str, slot: bytes, number: int, data: bytes) -> bytes:
    return digest_of(_encoded((kind, slot, number, data)))


def _encoded(value: object) -> bytes:
    return msgspec.msgpack.encode(value)
