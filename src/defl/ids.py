"""The types that name members, steps and bytes.

Only type names and the one hash function belong here.
"""

from hashlib import sha256
from typing import NewType

NodeId = NewType("NodeId", int)  # a member's place in the list; outsiders are numbered above
View = NewType("View", int)  # one step of consensus; the genesis block has view 0
Round = NewType("Round", int)  # one step of learning; the initial weights are round 0's model
Height = NewType("Height", int)  # a block's distance from the genesis block
Digest = NewType("Digest", bytes)  # SHA-256: the name of a block, a blob, a schema, a state

DIGEST_BYTES = 32
OUTSIDER = NodeId(999)  # what a node that is no member, or no longer, calls itself
NO_DIGEST = Digest(bytes(DIGEST_BYTES))  # a placeholder where there is nothing to name


def digest_of(data: bytes | memoryview) -> Digest:
    return Digest(sha256(data).digest())
