"""For tests of the commands that change a membership: the members' real folders, keys and files,
with simulated nodes behind them.

The commands reach a node's participant instead of a socket, and virtual time passes while they
wait.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from defl.cli import running_node
from defl.crypto import Ed25519Scheme
from defl.errors import UserError
from defl.ids import OUTSIDER, NodeId
from defl.messages import Handover
from defl.node.report.membership import (
    MembershipReport,
    decode_membership,
    encode_membership,
    membership_report,
)
from defl.node.report.requests import Request, decode_request, encode_request, event_of
from defl.node.setup import present
from defl.node.setup.config import read_identity, read_node
from defl.node.setup.initial import read_initial
from defl.node.setup.joining import awaited_chain
from defl.participant import Participant
from defl.sim.cluster import Cluster
from defl.sim.sim_node import Honest
from defl.succession import PendingChange
from support.founding import NAMES, CommandResult, agree, defl, init_nodes

STEPS_MAX = 200_000


class Operators:
    """One operator per member of a federation whose nodes are simulated."""

    def __init__(self, folder: Path, rounds: int = 30) -> None:
        self.folder = folder
        agreement = agree(folder, init_nodes(folder), "--rounds", rounds)
        self.federation_file = folder / "federation.toml"
        for name in NAMES:
            for file in (self.federation_file, folder / "initial.safetensors"):
                (folder / name / file.name).write_bytes(file.read_bytes())
        self.federation = agreement.federation
        manifest, payload = read_initial(folder / "initial.safetensors", self.federation)
        signers = tuple(read_identity(folder / name, name).signer for name in NAMES)
        self.cluster = Cluster(
            self.federation, signers, Ed25519Scheme(), (manifest, bytes(payload)), seed=1
        )
        self.machines = {name: NodeId(place) for place, name in enumerate(NAMES)}
        self.down: set[str] = set()
        self.now = 0.0
        self.poll_takes_s = 0.2  # virtual seconds between two questions of a command that waits

    def participant(self, name: str) -> Participant:
        return self.cluster.nodes[self.machines[name]].behaviour.participant

    def pending(self, name: str) -> PendingChange:
        """The only pending change, as this member's node knows it."""
        [change] = self.participant(name).state.changes
        return change

    # --- What operators do --------------------------------------------------------------------

    def run(self, *arguments: object) -> CommandResult:
        """A command starts when all nodes know what is pending: operators speak on the phone."""
        self.pass_until(lambda: self.is_over or self.all_agree)
        return defl(*arguments)

    @property
    def all_agree(self) -> bool:
        """Whether the members of the newest epoch list the same pending changes."""
        members = [self.participant(name) for name in NAMES if name not in self.down]
        newest = max(member.epoch for member in members)
        return len({member.state.changes for member in members if member.epoch == newest}) == 1

    def propose(self, name: str, *arguments: object) -> CommandResult:
        return self.run("federation", "propose", name, *arguments, "--json")

    def approve(self, proposed: CommandResult, *names: str) -> None:
        assert proposed.code == 0, proposed.text
        digest = proposed.json["digest"]
        for name in names:
            result = self.run("federation", "approve", name, digest[:8], "--yes")
            assert result.code == 0, result.text

    def fingerprint(self, name: str) -> str:
        """Of the epoch that this member's node is in."""
        text: str = self.run("federation", "show", name, "--json").json["fingerprint"]
        return text

    def join(self, name: str, folder: str | None = None, told: str | None = None) -> CommandResult:
        """A new machine with this name asks for a place; `told`: the fingerprint that it hears."""
        place = self.folder / (folder or name)
        made = defl("node", "init", place, "--name", name, "--address", "127.0.0.1:7499")
        assert made.code == 0, made.text
        heard = told or self.fingerprint("alice")
        joined = defl("node", "join", place, self.federation_file, "--fingerprint", heard)
        assert joined.code == 0, joined.text
        return joined

    def start_guest(self, name: str, *, awaits: bool = False) -> None:
        """`defl node start` of a machine that has joined."""
        folder = self.folder / name
        signer = read_identity(folder, read_node(folder).name).signer
        node = self.cluster.add_machine(signer)
        self.machines[name] = node.id
        if awaits:
            node.behaviour = Honest(
                Participant(
                    self.federation,
                    OUTSIDER,
                    signer,
                    node.disk.recovered(),
                    awaits_chain=awaited_chain(folder, self.federation, []),
                )
            )

    def pass_rounds(self, count: int = 1) -> None:
        wanted = self.participant("alice").state.round + count
        self.pass_until(lambda: self.participant("alice").state.round >= wanted)

    def pass_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(STEPS_MAX):
            if condition():
                return
            self.cluster.step()
        raise AssertionError("the simulation does not get there")

    # --- What the commands use instead of loopback and a clock --------------------------------

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(self.folder)
        monkeypatch.setattr(running_node, "running_membership", self.membership)
        monkeypatch.setattr(running_node, "running_status", lambda _folder: None)
        monkeypatch.setattr(running_node, "send_request", self.send)
        monkeypatch.setattr(running_node, "sleep", self.sleep)
        monkeypatch.setattr(running_node, "monotonic", lambda: self.now)
        monkeypatch.setattr(present, "running_membership", self.membership)

    def membership(self, folder: Path) -> MembershipReport | None:
        if folder.name in self.down or folder.name not in self.machines:
            return None
        report = membership_report(self.participant(folder.name))
        return decode_membership(encode_membership(report))

    def send(self, folder: Path, request: Request) -> None:
        if folder.name in self.down:
            raise UserError("the node does not answer")
        asked = decode_request(encode_request(request))
        event = event_of(asked, self.participant(folder.name))
        self.cluster.operator(self.machines[folder.name], event)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        until = self.cluster.now + self.poll_takes_s
        while self.cluster.now < until and not self.is_over:
            self.cluster.step()

    @property
    def is_over(self) -> bool:
        return all(node.behaviour.participant.finished for node in self.cluster.nodes)

    def handovers(self, name: str) -> list[Handover]:
        return list(self.cluster.nodes[self.machines[name]].disk.handovers.values())
