"""Real processes: three of four members only dial, so that nothing is decided without a relay."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from defl.cards import Reach
from defl.committee import Timing
from defl.lab.experiments.processes import Nodes
from defl.node.relay.files import relay_card_file
from defl.node.setup.config import CONFIG_FILE, card_file, node_text, read_node, renew_card
from defl.node.setup.local import FEDERATION_FILE, free_ports
from support.founding import defl

LIMIT_S = 110.0
TIMING = Timing(view_base_s=0.5, gst_lt_min_s=2.0, gst_lt_max_s=30.0, grace_s=30.0)
ROUNDS = 4
DIALLING = (1, 2, 3)


class RelayProcess:
    def __init__(self, folder: Path, federation: Path) -> None:
        self._folder, self._federation = folder, federation
        self._log = folder / "relay.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["-m", "defl.cli.main", "relay", "start", str(self._folder), "--json"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command, "--federation", str(self._federation)], stderr=log
            )

    def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(LIMIT_S)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def counts(self) -> dict[str, int]:
        """As logged on its last exit."""
        lines = map(json.loads, self._log.read_text(encoding="utf-8").splitlines())
        counts: dict[str, int] = [line for line in lines if line["event"] == "relay stopped"][-1]
        return counts


def close_networks(nodes: Nodes) -> RelayProcess:
    """Three members only dial from now on, and the agreed file names a relay."""
    folder = nodes.local.folder
    for member in DIALLING:
        at = nodes.local.nodes[member]
        config = replace(read_node(at), reach=Reach.DIAL, address="", listen="")
        (at / CONFIG_FILE).write_text(node_text(config), encoding="utf-8")
        renew_card(at)
    relay = folder / "relay"
    made = defl("relay", "init", relay, "--name", "r", "--address", f"127.0.0.1:{free_ports(1)[0]}")
    assert made.code == 0, made.text
    created = defl(
        *("federation", "create", *(card_file(at, at.name) for at in nodes.local.nodes)),
        *("--relay", relay_card_file(relay, "r"), "--model", "client:client"),
        *("--project", folder / "project", "--rounds", ROUNDS, "--aggregation", "fed_avg"),
        *("--view-base-s", TIMING.view_base_s, "--gst-lt-min-s", TIMING.gst_lt_min_s),
        *("--gst-lt-max-s", TIMING.gst_lt_max_s, "--grace-s", TIMING.grace_s),
        *("--chunk-bytes", 1024, "-o", folder / FEDERATION_FILE, "--force"),
    )
    assert created.code == 0, created.text
    assert "without it 2 of 4 members are all connected with each other, no quorum" in created.text
    return RelayProcess(relay, folder / FEDERATION_FILE)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    federation = Nodes(tmp_path / "federation", 4, ROUNDS, timing=TIMING, chunk_bytes=1024)
    yield federation
    federation.close()


def route(nodes: Nodes, number: int, peer: str) -> str | None:
    """How a node reaches a peer; None: not connected."""
    status = nodes.status(number)
    link = status.links.get(peer) if status is not None else None
    return None if link is None else link.route


def test_members_that_only_dial_finish_through_a_relay_that_is_killed_on_the_way(
    nodes: Nodes,
) -> None:
    relay = close_networks(nodes)
    try:
        relay.start()
        nodes.start()
        # The first round may close before the last pair has met.
        nodes.wait(lambda: nodes.round(1) >= 1 and route(nodes, 1, "node-2") is not None, LIMIT_S)
        assert route(nodes, 1, "node-2") == "through the relay r"
        relay.end(signal.SIGKILL)
        relay.start()
        nodes.finish(LIMIT_S)
        assert nodes.judge() == []
        assert relay.end(signal.SIGTERM) == 0
        # Of three pairs with two lanes each; training may end before the last one is back.
        assert relay.counts["pairs_in_total"] > 0
    finally:
        relay.close()
