"""Index of the stored blobs: what each is kept for, for how long, and whether it was checked.

A blob is kept while a label names it: an author's update for a round, or a round's model. Labels
expire with the committed round, so storage is M * tau * n however long the federation runs.
"""

from dataclasses import dataclass

from defl.ids import Digest, NodeId, Round
from defl.messages import Manifest

Label = tuple[Round, NodeId | None]  # None: the model of that round


@dataclass(slots=True)
class Holding:
    manifest: Manifest
    chunks: set[int]
    # The values obey the rules. This stays true if chunks are lost and fetched back: the manifest
    # names them by hash. It is forgotten with the blob.
    checked: bool = False

    @property
    def complete(self) -> bool:
        return len(self.chunks) == len(self.manifest.chunks)


class BlobIndex:
    def __init__(self) -> None:
        self._holdings: dict[Digest, Holding] = {}
        self._labels: dict[Label, Digest] = {}
        self._oldest: dict[Digest, Round] | None = None  # by blob, until a label changes

    def __len__(self) -> int:
        return len(self._holdings)

    @property
    def labels(self) -> dict[Label, Digest]:
        return dict(self._labels)

    def restore(self, manifest: Manifest, chunks: frozenset[int]) -> None:
        self._holdings[manifest.digest] = Holding(manifest, set(chunks))

    def label(self, label: Label, digest: Digest) -> list[Digest]:
        """Name a blob; returns the blobs that no label names any more."""
        earlier = self._labels.get(label)
        self._labels[label] = digest
        self._oldest = None
        return self._unnamed({earlier}) if earlier not in (None, digest) else []

    def labelled(self, label: Label) -> Digest | None:
        return self._labels.get(label)

    def manifest(self, digest: Digest) -> Manifest | None:
        holding = self._holdings.get(digest)
        return holding.manifest if holding is not None else None

    def has(self, digest: Digest) -> bool:
        holding = self._holdings.get(digest)
        return holding is not None and holding.complete

    def has_chunk(self, digest: Digest, index: int) -> bool:
        holding = self._holdings.get(digest)
        return holding is not None and index in holding.chunks

    def chunks(self, digest: Digest) -> frozenset[int]:
        holding = self._holdings.get(digest)
        return frozenset(holding.chunks) if holding is not None else frozenset()

    def add_chunk(self, manifest: Manifest, index: int) -> bool:
        """True when the blob became complete."""
        holding = self._holdings.setdefault(manifest.digest, Holding(manifest, set()))
        holding.chunks.add(index)
        return holding.complete

    def lose_chunks(self, digest: Digest, indexes: frozenset[int]) -> None:
        self._holdings[digest].chunks -= indexes

    def mark_checked(self, digest: Digest) -> None:
        """Record that all values of a complete blob obey the rules."""
        if self.has(digest):
            self._holdings[digest].checked = True

    def is_checked(self, digest: Digest) -> bool:
        """Whether all bytes are here and their values were checked."""
        return self.has(digest) and self._holdings[digest].checked

    def add_whole(self, manifest: Manifest) -> None:
        self._holdings[manifest.digest] = Holding(manifest, set(range(len(manifest.chunks))))

    def remove(self, digest: Digest) -> None:
        self._holdings.pop(digest, None)
        self._labels = {label: named for label, named in self._labels.items() if named != digest}
        self._oldest = None

    def expire(self, round_: Round) -> list[Digest]:
        """Drop labels of this round and older; returns the blobs that no label names any more."""
        self._oldest = None
        old = [label for label in self._labels if label[0] <= round_]
        digests: set[Digest | None] = {self._labels.pop(label) for label in old}
        return self._unnamed(digests)

    def expire_from(self, round_: Round) -> list[Digest]:
        """Drop labels of this round and newer; returns the blobs that no label names any more."""
        self._oldest = None
        new = [label for label in self._labels if label[0] >= round_]
        digests: set[Digest | None] = {self._labels.pop(label) for label in new}
        return self._unnamed(digests)

    def oldest_round(self, digest: Digest) -> Round | None:
        """The oldest round that the blob is kept for. Former members can ask this often."""
        if self._oldest is None:
            self._oldest = {}
            for (round_, _), named in self._labels.items():
                self._oldest[named] = min(round_, self._oldest.get(named, round_))
        return self._oldest.get(digest)

    def unlabelled(self) -> list[Digest]:
        """Drop everything that no label names: leftovers of an interrupted run."""
        return self._unnamed(set(self._holdings))

    def _unnamed(self, digests: set[Digest | None] | set[Digest]) -> list[Digest]:
        named = set(self._labels.values())
        dropped = [digest for digest in digests if digest is not None and digest not in named]
        for digest in dropped:
            self._holdings.pop(digest, None)
        return sorted(dropped)
