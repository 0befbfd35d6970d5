"""What the status of a running node says about its peers and about its own safety."""

import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest

from defl.cli.exit_codes import ExitCode, exit_code
from defl.contacts import PeerRole
from defl.duty import Report
from defl.errors import LocalFault
from defl.finish import Isolation
from defl.ids import View
from defl.lab.experiments.processes import Nodes
from defl.messages import Status
from defl.node.report.status import status_of
from defl.output import SafetyBroken
from defl.participant import Participant
from support.in_process_node import LIMIT_S, InProcessNode, Member, until

LONG_AGO = -1e9


def test_the_status_says_for_how_long_a_peer_is_away_and_how_much_it_sent(tmp_path: Path) -> None:
    folders = Nodes(tmp_path / "federation", 4, 1).local.nodes

    async def scenario() -> None:
        here, peer = InProcessNode(folders[2]), Member(folders[1])
        node = here.node
        async with here.running():
            node.transport._contacts[peer.me].lost_at = LONG_AGO
            async with peer.connected(node.me):
                await until(lambda: node.transport.connected(peer.me))
                peer.send(node.me, Status(View(0), View(0)))
                await until(lambda: status_of(node).peer_traffic["node-1"].received > 0)
                assert "node-1" not in status_of(node).away_s
            await until(lambda: not node.transport.connected(peer.me))
            status = status_of(node)
            assert status.away_s["node-1"] < -LONG_AGO / 2
            assert set(status.away_s) == {"node-0", "node-1", "node-3"}
            assert status.peer_traffic["node-0"].received == 0

    asyncio.run(scenario())


def test_broken_safety_stays_in_the_status(tmp_path: Path) -> None:
    folders = Nodes(tmp_path / "federation", 4, 1).local.nodes

    async def scenario() -> None:
        here = InProcessNode(folders[2])
        async with here.running():
            assert status_of(here.node).safety_broken is None
            here.node._report(Report((), (SafetyBroken("two blocks"),)))
            here.node._report(Report((), ()))
            status = status_of(here.node)
            assert status.safety_broken == "two blocks"
            assert not status.healthy

    asyncio.run(scenario())


@pytest.mark.parametrize("role", [PeerRole.MEMBER, PeerRole.FORMER])
def test_a_node_that_hears_of_nobody_ends_and_says_what_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: PeerRole
) -> None:
    """One that knows that it has left ends without an error: nobody has to start it again."""
    folder = Nodes(tmp_path / "federation", 4, 1).local.nodes[2]
    monkeypatch.setattr(Participant, "role", role)

    def is_alone(isolation: Isolation, *_: object) -> bool:
        isolation.stops = True
        return True

    monkeypatch.setattr(Isolation, "judge", is_alone)

    async def scenario() -> InProcessNode:
        here = InProcessNode(folder)
        async with asyncio.timeout(LIMIT_S):
            with nullcontext() if role is PeerRole.FORMER else pytest.raises(LocalFault) as ended:
                await here.node.run()
        if ended is not None:
            assert "72 hours at most 1 of the other members could be heard" in str(ended.value)
            assert exit_code(ended.value) is ExitCode.FAILED
        return here

    here = asyncio.run(scenario())

    (line,) = here.logged("isolated: this node stops")
    assert "this node does not know which" in line["why"]
    assert not here.logged("finished")
    assert not here.logged("departed: this node has left, and enough members know it; it stops")
