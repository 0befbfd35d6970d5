"""For tests that display or serve a node's status: a complete one, with chosen changes."""

from msgspec.structs import replace

from defl.node.report.status import LaneTraffic, NodeStatus

NEW = NodeStatus(
    member=0,
    name="alice",
    federation="c9b14b02" * 8,
    round=0,
    rounds=5,
    model=None,
    view=0,
    height=0,
    observing=None,
    disk_full=False,
    no_descriptors=False,
    finished=False,
    peers={"bob": True, "carol": True, "dave": True},
    trouble={},
    commit_ms=None,
    waiting="for updates: 0 of at least 3 are in",
    waiting_for_s={},
    blobs=1,
    disk_bytes=4096,
    evidence=[],
    refused={},
    traffic={"control": LaneTraffic(0, 0), "weights": LaneTraffic(0, 0)},
    memory_peak_bytes=50_000_000,
    training_failures=0,
    worker_error=None,
    aggregation=None,
    left_out={},
    late={},
    own_update_late=None,
    evaluation=None,
    evaluation_error=None,
    history=[],
)


def status(**changes: object) -> NodeStatus:
    """The status of a node that has just started, with these changes."""
    return replace(NEW, **changes)
