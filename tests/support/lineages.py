"""For tests of offline proofs: a federation with real signatures whose members come and go.

Its founders are real folders with a federation.toml; the rounds are simulated. Each machine that
has a folder keeps its proofs there as a node does.
"""

from hashlib import sha256
from pathlib import Path

import numpy as np

from defl.changes import Remove
from defl.crypto import Ed25519Scheme, Ed25519Signer
from defl.ids import NodeId
from defl.node.report.archive import ARCHIVE, Archive
from defl.node.report.certificate import certificate_of, certificate_text
from defl.node.report.lineage_file import read_lineage
from defl.node.report.model_file import write_model
from defl.node.setup.config import read_identity
from defl.output import Attested, EpochBegan, Finished, Notice, RoundProven
from defl.proofs import verify_lineage
from defl.sim.cluster import Cluster
from defl.work import model_blob, model_row
from support.epochs import Churn
from support.founding import NAMES, agree, defl, init_nodes

ROUNDS = 12
EVE = "eve"


class ProvenChurn(Churn):
    """alice's folder, and eve's, who joins later, hold what a node's folder holds."""

    def __init__(self, folder: Path, rounds: int = ROUNDS) -> None:
        agreement = agree(folder, init_nodes(folder), "--rounds", rounds)
        federation = agreement.federation
        self.folder = folder
        self.notices = []
        self.folders = {NodeId(0): folder / "alice"}
        (folder / "alice" / "federation.toml").write_bytes(agreement.text)
        self.cluster = Cluster(
            federation,
            tuple(read_identity(folder / name, name).signer for name in NAMES),
            Ed25519Scheme(),
            model_blob(federation, np.zeros(federation.schema.values, dtype=np.float32)),
            seed=1,
            on_notice=self._note,
        )

    def add_machine(self, text: str) -> int:
        return self.cluster.add_machine(Ed25519Signer(sha256(text.encode()).digest())).id

    def _note(self, machine: NodeId, notice: Notice) -> None:
        super()._note(machine, notice)
        if machine in self.folders:
            self._keep(machine, notice)

    def _keep(self, machine: NodeId, notice: Notice) -> None:
        federation = self.cluster.federation
        archive = Archive(self.folders[machine])
        match notice:
            case RoundProven() | Attested():
                text = certificate_text(certificate_of(federation, notice))
                archive.keep_certificate(notice.round, text)
                self._keep_state(machine)
                if self.node(machine).disk.is_whole(notice.digest):
                    self._write_model(machine, notice)
            case EpochBegan(handover=handover):
                archive.keep_handover(handover)
            case Finished():
                self._keep_state(machine)

    def _keep_state(self, machine: NodeId) -> None:
        state = self.participant(machine).replica.snapshot
        if state is not None:
            Archive(self.folders[machine]).keep_state(state)

    def _write_model(self, machine: NodeId, notice: RoundProven | Attested) -> None:
        federation = self.cluster.federation
        row = model_row(federation, self.node(machine).disk.read(notice.digest))
        metadata = {"round": str(notice.round), "digest": notice.digest.hex()}
        write_model(
            self.folders[machine] / f"model-{notice.round}.safetensors",
            federation.schema,
            row,
            metadata,
        )


def lived(folder: Path) -> ProvenChurn:
    """eve joins (epoch 1), dan leaves (2), bob gets another key (3), and the last round closes."""
    churn = ProvenChurn(folder)
    churn.run_until_round(2)
    eve = churn.add_machine(EVE)
    churn.folders[NodeId(eve)] = _folder_of_joiner(churn)
    churn.change(churn.add(eve, EVE))
    churn.run_until_epoch(1)
    churn.run_until_round(churn.newest.federation.first_round + 1)
    churn.change(Remove(NodeId(3)), by=3, approvers=())
    churn.run_until_epoch(2, 0, 1, 2, eve)
    churn.run_until_round(churn.newest.federation.first_round + 1, 0, 1, 2, eve)
    churn.switch_off(1)
    bob = churn.add_machine("bob's new machine")
    churn.change(churn.replace_key(1, bob))
    churn.run_until_epoch(3, 0, 2, eve, bob)
    churn.switch_on(1)  # and learns that it is nobody's machine any more
    churn.finish()
    return churn


def _folder_of_joiner(churn: ProvenChurn) -> Path:
    folder = churn.folder / EVE
    folder.mkdir()
    for name in ("node.toml", "federation.toml"):
        (folder / name).write_bytes((churn.folder / "alice" / name).read_bytes())
    return folder


class ExportedLife:
    """The federation's end, and what alice's node exported then."""

    def __init__(self, folder: Path) -> None:
        self.churn = lived(folder)
        self.federation = folder / "federation.toml"
        self.alice, self.eve = folder / "alice", folder / EVE
        self.path = folder / "lineage.json"
        answer = defl("export", self.alice, self.path, "--lineage")
        assert answer.code == 0, answer.text
        self.lineage = read_lineage(self.path)
        self.proof = verify_lineage(self.path, self.federation)

    def first_round(self, epoch: int) -> int:
        return self.proof.epochs[epoch].first_round

    def model(self, round_: int) -> Path:
        return self.alice / f"model-{round_}.safetensors"

    def certificate(self, round_: int) -> Path:
        return self.alice / ARCHIVE / f"round-{round_}.json"
