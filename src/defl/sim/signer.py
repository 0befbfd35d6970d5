"""Signatures that cost nothing, and a signer that ignores its record: for the simulator only.

A "signature" is the statement followed by the signer's public key. Anyone could forge it; the
simulated liars' code never does.
"""

from defl.consensus.safety import Safety
from defl.ids import Digest


class NoopSigner:
    def __init__(self, public_key: bytes) -> None:
        self._public_key = public_key

    @property
    def public_key(self) -> bytes:
        return self._public_key

    def sign(self, message: Digest) -> bytes:
        return message + self._public_key


class NoopScheme:
    def verify(self, public_key: bytes, message: Digest, signature: bytes) -> bool:
        return signature == message + public_key


class LiarSafety(Safety):
    """A Byzantine member's safety record: it keeps signing when others show it signatures beyond
    its record, since those are its own lies."""

    def observe(self, reason: str) -> None:
        pass
