"""Who leads which view: every member once per lap of n views, in an order that changes each lap.

In a fixed order, failing members could be placed so that three good leaders never follow each
other.
"""

from functools import lru_cache

from defl.ids import Digest, NodeId, View, digest_of


@lru_cache(maxsize=64)
def order_of_lap(chain: Digest, members: tuple[NodeId, ...], lap: int) -> tuple[NodeId, ...]:
    """The members sorted by a hash that no member can choose for all laps."""
    seed = b"defl/leaders" + chain + lap.to_bytes(8, "big")
    return tuple(sorted(members, key=lambda member: digest_of(seed + member.to_bytes(8, "big"))))


@lru_cache(maxsize=1024)
def leader_of(chain: Digest, members: tuple[NodeId, ...], view: View) -> NodeId:
    n = len(members)
    return order_of_lap(chain, members, view // n)[view % n]
