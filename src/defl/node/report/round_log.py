"""history.jsonl in a node's folder: written by the node, read by other processes as it grows.

One fact per line (round_facts.py). The file is only ever appended to. A line that a crash or a full
disk has cut short is a line of its own: nothing else is lost with it.
"""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from defl.node.files import HISTORY_FILE
from defl.node.report.log import Log
from defl.node.report.round_facts import Fact

# Read in one piece; no line is longer, since a fact of a hundred members takes about 20 KB.
PIECE_BYTES = 2**22

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Fact] = msgspec.json.Decoder(Fact)


class FactWriter:
    """The node's side: facts are appended off the loop, in their order. A fact that cannot be
    written is lost, and the node goes on."""

    def __init__(self, folder: Path, log: Log) -> None:
        """`folder`: the node's."""
        self._path = folder / HISTORY_FILE
        self._log = log
        self._waiting: asyncio.Queue[Fact | None] = (
            asyncio.Queue()
        )  # a few per round; None: the end
        self._failing = False  # and the log says so

    def put(self, fact: Fact) -> None:
        self._waiting.put_nowait(fact)

    async def run(self) -> None:
        """Runs until `end`, and writes what is left then."""
        goes_on = True
        while goes_on:
            first = await self._waiting.get()
            taken = [first, *(self._waiting.get_nowait() for _ in range(self._waiting.qsize()))]
            facts = [fact for fact in taken if fact is not None]
            goes_on = len(facts) == len(taken)
            if facts:
                await asyncio.to_thread(self.append, facts)

    def end(self) -> None:
        self._waiting.put_nowait(None)

    def append(self, facts: list[Fact]) -> None:
        try:
            _append(self._path, _encoder.encode_lines(facts))
        except OSError as fault:
            if not self._failing:
                self._log.warning("not written", what=HISTORY_FILE, why=fault)
            self._failing = True
        else:
            self._failing = False


def _append(path: Path, lines: bytes) -> None:
    """Readable by others, like models and certificates: it holds no secret."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            lines = b"\n" + lines  # after a line that was cut short
        while lines:
            lines = lines[os.write(descriptor, lines) :]
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class NewFacts:
    facts: list[Fact]
    from_start: bool  # of a file that was not there before: what was read earlier does not count


class RoundLog:
    """Reads what was appended since it read last."""

    def __init__(self, folder: Path, piece_bytes: int = PIECE_BYTES) -> None:
        """`folder`: the node's."""
        self._piece_bytes = piece_bytes
        self._path = folder / HISTORY_FILE
        self._file: tuple[int, int] | None = None  # device and inode
        self._offset = 0
        self.undecodable = 0  # lines so far

    def read_new(self) -> NewFacts:
        """Whole lines only; none if there is no file. Raises OSError if it cannot be read."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return NewFacts([], self._is_other(None, 0))
        try:
            about = os.fstat(descriptor)
            from_start = self._is_other((about.st_dev, about.st_ino), about.st_size)
            facts: list[Fact] = []
            while piece := os.pread(descriptor, self._piece_bytes, self._offset):
                whole = piece.rfind(b"\n") + 1
                if not whole and len(piece) < self._piece_bytes:
                    break  # the newest line is being written
                self._offset += whole or len(piece)
                facts += self._decoded(piece[:whole] if whole else piece)
            return NewFacts(facts, from_start)
        finally:
            os.close(descriptor)

    def _is_other(self, file: tuple[int, int] | None, size: int) -> bool:
        """Another file than before, or a shorter one: begin again."""
        if file == self._file and size >= self._offset:
            return False
        self._file, self._offset, self.undecodable = file, 0, 0
        return True

    def _decoded(self, lines: bytes) -> list[Fact]:
        try:
            return _decoder.decode_lines(lines)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return [fact for line in lines.split(b"\n") if (fact := self._decoded_line(line))]

    def _decoded_line(self, line: bytes) -> Fact | None:
        if not line.strip():
            return None
        try:
            return _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.undecodable += 1
            return None
