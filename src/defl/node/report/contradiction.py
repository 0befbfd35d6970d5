"""A member that signed two statements that exclude each other, as a plain value and in words."""

from msgspec import Struct

# By the type of the statements: what they are called, and what their number counts.
_KINDS = {
    "SignedHeader": ("proposal", "view"),
    "Vote": ("vote", "view"),
    "Timeout": ("timeout", "view"),
    "Offer": ("offer", "round"),
    "Upd": ("update", "round"),
    "Attestation": ("attestation", "round"),
}


class Contradiction(Struct, frozen=True):
    member: str
    kind: str  # the type of the statements: Vote, Upd, ...
    number: int | None = None  # the view or the round of both; None: a node of an older release
    epoch: int = 0
    file: str | None = None  # the proof, in the node's folder evidence/; None: not written

    @property
    def word(self) -> str:
        return _KINDS.get(self.kind, ("statement", ""))[0]

    @property
    def where(self) -> str:
        """`in view 212`, or nothing."""
        unit = _KINDS.get(self.kind, ("", ""))[1]
        return f"in {unit} {self.number}" if unit and self.number is not None else ""

    def __str__(self) -> str:
        return f"two {self.word}s {self.where}".rstrip()
