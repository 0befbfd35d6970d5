"""What the status of a running node says about its peers and about its own safety."""

import asyncio
from pathlib import Path

from defl.duty import Report
from defl.ids import View
from defl.lab.experiments.processes import Nodes
from defl.messages import Status
from defl.node.report.status import status_of
from defl.output import SafetyBroken
from support.in_process_node import InProcessNode, Member, until

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
