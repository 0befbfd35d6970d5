"""For tests of the dashboard: nodes' folders with a history that was made up, without a run."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from defl.node.files import HISTORY_FILE, STATUS_FILE
from defl.node.report.round_facts import (
    Closed,
    Fact,
    Measured,
    Proven,
    RoundJudged,
    RoundReady,
    Started,
)
from defl.node.report.status import BY_RULE, MemberShare, NodeStatus, encode_status
from support.founding import NAMES, agree, init_nodes
from support.statuses import NEW


def found_nodes(folder: Path) -> list[Path]:
    """Four nodes that have their federation's file and have never run."""
    agreement = agree(folder, init_nodes(folder), "--rounds", "5")
    nodes = [folder / name for name in NAMES]
    for node in nodes:
        (node / "federation.toml").write_bytes((folder / "federation.toml").read_bytes())
    assert len(agreement.federation.members) == len(nodes)
    return nodes


def add_facts(node: Path, facts: Iterable[Fact]) -> None:
    with (node / HISTORY_FILE).open("ab") as file:
        for fact in facts:
            file.write(msgspec.json.encode(fact) + b"\n")


def write_status(node: Path, **changes: object) -> NodeStatus:
    """The final status of a node that does not run."""
    status = replace(NEW, **{"name": node.name, **changes})
    (node / STATUS_FILE).write_bytes(encode_status(status))
    return status


def round_of(
    number: int,
    *,
    left_out: Sequence[str] = (),
    missing: Sequence[str] = (),
    members: Sequence[str] = NAMES,
) -> list[Fact]:
    """A round that closed, was judged, evaluated and proven."""
    came = [name for name in members if name not in missing]
    kept = len(came) - len(left_out)
    return [
        Closed(
            at=1_790_000_000.0 + 30 * number,
            round=number,
            lasted_s=12.5,
            arrivals={name: 2.0 + place for place, name in enumerate(came)},
            missing=list(missing),
        ),
        RoundJudged(
            number,
            "the mean of those that agree",
            {
                name: MemberShare(0.0, 9.0, BY_RULE, "it varies too much")
                if name in left_out
                else MemberShare(1 / kept, 0.1, None)
                for name in came
            }
            | {name: MemberShare() for name in missing},
        ),
        RoundReady(number, f"{number:064x}"),
        Measured(number, {"accuracy": 0.9 + number / 100}, 0.5),
        Proven(number, f"{number:064x}", len(members), len(members), len(members) - 1),
    ]


def started(members: Sequence[str] = NAMES, round_: int = 0) -> Started:
    return Started(at=1_790_000_000.0, round=round_, epoch=0, first_round=1, members=list(members))
