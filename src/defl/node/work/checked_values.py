"""Chunks that are known to hold valid values only: they are checked where they are hashed.

An update whose chunks are all known needs no other check. Chunks are named by their hash, so it
does not matter which blob or peer brought them. Nothing is known after a restart, or of a codec
whose chunks cannot be judged one by one: the worker then checks the whole update.
"""

from defl.committee import Federation
from defl.ids import Digest
from defl.messages import Manifest
from defl.pool.weights import Payload, is_valid_chunk

# Those of 100 updates of 600 MB. The oldest is forgotten first: its update is checked again.
CHUNKS_MAX = 16_384


class CheckedValues:
    def __init__(self, federation: Federation) -> None:
        self._codec = federation.codec
        self._chunk_bytes = federation.chunk_bytes
        self._valid: dict[Digest, None] = {}

    def are_valid(self, chunk: Payload) -> bool:
        """May be called in any thread."""
        return is_valid_chunk(chunk, self._codec, self._chunk_bytes)

    def add(self, chunk: Digest) -> None:
        while len(self._valid) >= CHUNKS_MAX:
            del self._valid[next(iter(self._valid))]
        self._valid[chunk] = None

    def cover(self, manifest: Manifest) -> bool:
        return all(chunk in self._valid for chunk in manifest.chunks)
