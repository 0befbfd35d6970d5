"""For tests of epochs with real processes: machines join, and members decide by the commands."""

import time
from collections.abc import Callable
from pathlib import Path

from defl.committee import Timing
from defl.ids import Digest
from defl.lab.experiments.processes import Nodes
from defl.node.report.status import NodeStatus
from defl.node.setup.config import LogFormat, NodeConfig, create_node
from defl.node.setup.fingerprint import fingerprint
from defl.node.setup.identity import make_card, make_identity
from defl.node.setup.joining import join_card_file, prepare_join
from defl.node.setup.local import FEDERATION_FILE, Local, free_ports
from support.founding import CommandResult, defl

LIMIT_S = 100.0
POLL_S = 0.01
TIMING = Timing(view_base_s=0.5, gst_lt_min_s=2.0, gst_lt_max_s=30.0, grace_s=5.0)


class ChangingNodes(Nodes):
    """Four founders with many rounds, and any number of machines that join them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 4, 1000, timing=TIMING, chunk_bytes=1024, train_s=0.2)

    def join(self, name: str, folder: str, told_by: int = 0) -> tuple[int, Path]:
        """A new machine of this name, which heard the fingerprint from a member: its number, and
        its card."""
        at = self.local.folder / folder
        address = f"127.0.0.1:{free_ports(1)[0]}"
        config = NodeConfig(
            name=name,
            address=address,
            listen=address,
            client="client:client",
            project=str((self.local.folder / "project").resolve()),
            log_format=LogFormat.JSON,
        )
        identity = make_identity(name)
        create_node(at, config, identity, make_card(identity, address))
        chain = Digest(bytes.fromhex(self.known(told_by).chain))
        prepare_join(at, self.local.folder / FEDERATION_FILE, fingerprint(chain))
        self.local = Local(self.local.folder, (*self.local.nodes, at))
        return len(self.local.nodes) - 1, join_card_file(at, name)

    def change(self, *options: object, by: tuple[int, ...] = (0, 1, 2)) -> None:
        """The first proposes it, the others approve. It may take effect before they are asked; if
        another boundary comes first it lapses, and is proposed again."""
        proposer, *approvers = by
        proposed = self.command("federation", "propose", proposer, *options, "--json")
        if proposed.json.get("in_effect"):
            return
        for member in approvers:
            digest = proposed.json["digest"]
            done = self._asked("federation", "approve", member, digest, "--yes")
            if "no change is pending" in done.text:
                self.change(*options, by=by)
                return
            assert done.code == 0, done.text

    def command(self, group: str, name: str, member: int, *options: object) -> CommandResult:
        done = self._asked(group, name, member, *options)
        assert done.code == 0, done.text
        return done

    def _asked(self, group: str, name: str, member: int, *options: object) -> CommandResult:
        return defl(group, name, self.local.nodes[member], *options, "--timeout", LIMIT_S)

    def known(self, member: int) -> NodeStatus:
        status = self.status(member)
        assert status is not None
        return status

    def until(self, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Polls often, so that what follows comes soon after; a node that failed fails the test."""
        end = time.monotonic() + limit_s
        while not condition():
            self.require_no_failure()
            if time.monotonic() > end:
                shown = [(self.running(m), self.status(m)) for m in self.members]
                raise AssertionError(f"still waiting after {limit_s} s: {shown}")
            time.sleep(POLL_S)

    def epoch_logged(self, epoch: int) -> bool:
        """Has some node written that this epoch began?"""
        line = f'"event": "epoch began", "epoch": {epoch},'
        logs = (node / "node.log" for node in self.local.nodes)
        return any(line in log.read_text(errors="replace") for log in logs if log.exists())

    def reached(self, epoch: int, *members: int) -> bool:
        states = [self.status(member) for member in members]
        return all(state is not None and state.epoch == epoch for state in states)

    def digests(self) -> dict[int, set[str]]:
        """The models that the nodes computed, by round: one each if all is well."""
        digests: dict[int, set[str]] = {}
        for member in self.members:
            for line in self.log(member):
                if line["event"] == "model ready":
                    digests.setdefault(line["round"], set()).add(line["digest"])
        return digests
