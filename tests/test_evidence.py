"""Evidence relayed by another member: kept, reported to the operator, relayed once."""

import asyncio
from pathlib import Path

from msgspec.structs import replace

from defl.evidence import EvidenceLog
from defl.ids import NodeId, View
from defl.lab.experiments.processes import Nodes
from defl.messages import Evidence, Vote, vote_statement
from defl.node.report.status import status_of
from defl.node.setup.config import read_identity, read_node
from defl.output import Envelope, EvidenceFound, Output, Received, Tick
from defl.participant import Participant
from support.builders import Small, name
from support.founding import defl
from support.in_process_node import InProcessNode, Member, until

SMALL = Small(real=False)
PROOF = Evidence(SMALL.vote(1, 5, name("one")), SMALL.vote(1, 5, name("another")))


def noticed(output: Output) -> list[Evidence]:
    return [n.evidence for n in output.notices if isinstance(n, EvidenceFound)]


def test_received_evidence_is_kept_reported_and_relayed_exactly_once() -> None:
    me = Participant(SMALL.federation, NodeId(0), SMALL.signers[0], SMALL.durable())
    me.handle(Tick(), 0.0)

    first = me.handle(Received(NodeId(2), PROOF), 0.0)
    again = me.handle(Received(NodeId(3), PROOF), 0.0)

    assert noticed(first) == [PROOF]
    assert first.persist is not None
    assert first.persist.evidence == (PROOF,)
    assert Envelope(None, PROOF) in first.send
    assert noticed(again) == []
    assert again.persist is None
    assert Envelope(None, PROOF) not in again.send


def participant_now() -> Participant:
    return Participant(SMALL.federation, NodeId(0), SMALL.signers[0], SMALL.durable())


def test_evidence_is_of_the_epoch_it_was_found_in_and_stays_in_the_next() -> None:
    participant = participant_now()
    found = participant.handle(Received(NodeId(2), PROOF), 0.0)
    participant.handle(Received(NodeId(2), SMALL.handover()), 1.0)

    assert participant.epoch == 1
    assert [item.epoch for item in participant.evidence] == [0]
    assert found.persist is not None
    assert found.persist.evidence == participant.evidence
    later = participant.handle(Received(NodeId(2), PROOF, epoch=1), 2.0)
    assert [item.epoch for item in participant.evidence] == [1]
    assert later.persist is not None
    assert later.persist.evidence == participant.evidence


def test_evidence_found_by_the_step_that_ends_its_epoch_is_of_that_epoch() -> None:
    """A Byzantine member sends two timeouts of one view. The second one reports the QC that proves
    the end of the epoch, so the step that finds the evidence also switches. Dated into the next
    epoch, nobody could verify it."""
    participant = participant_now()
    ending = SMALL.ending_chain()
    for block in ending:
        participant.handle(Received(block.header.author, SMALL.proposal(block)), 0.0)
    before, proven = (SMALL.qc(block.view, block.id) for block in ending[-2:])
    first, second = (SMALL.timeout(1, proven.view + 1, qc) for qc in (before, proven))
    participant.handle(Received(NodeId(1), first), 1.0)
    assert participant.epoch == 0

    output = participant.handle(Received(NodeId(1), second), 1.0)

    assert participant.epoch == 1
    (evidence,) = noticed(output)
    SMALL.verifier().verify(evidence)
    assert output.persist is not None
    assert output.persist.evidence == (evidence,)
    assert participant.evidence == (evidence,)


def test_evidence_that_was_checked_in_another_epoch_is_not_heard() -> None:
    """The key that signed it may be another member's by now."""
    participant = participant_now()
    participant.handle(Received(NodeId(2), SMALL.handover()), 1.0)
    output = participant.handle(Received(NodeId(2), PROOF, epoch=0), 2.0)

    assert participant.evidence == ()
    assert noticed(output) == []


def test_a_proof_of_an_earlier_epoch_does_not_stand_in_the_way_of_a_new_one() -> None:
    """One of each kind against each member is kept: the newest epoch's."""
    new = replace(PROOF, epoch=1)
    log = EvidenceLog(NodeId(0), (PROOF,), epoch=1)

    assert not log.is_proven(NodeId(1), Vote)
    assert log.wants(new)
    log.add(new)
    assert log.is_proven(NodeId(1), Vote)
    assert log.all == (new,)
    assert not EvidenceLog(NodeId(1), (), epoch=1).wants(new), "none against itself"


def signed_vote(liar: Member, folder: Path, block: str) -> Vote:
    federation = liar.federation
    unsigned = replace(PROOF.first, block=name(block), author=liar.me)
    assert isinstance(unsigned, Vote)
    message = vote_statement(federation.chain, federation.epoch, View(5), unsigned.block)
    signature = read_identity(folder, "node-1").signer.sign(message)
    return replace(unsigned, signature=signature, epoch=federation.epoch)


def test_a_contradiction_proven_by_another_member_is_logged_and_becomes_a_file(
    tmp_path: Path,
) -> None:
    folders = Nodes(tmp_path / "federation", 4, 1).local.nodes
    file = folders[2] / "evidence" / "evidence-node-1-vote-5.json"

    async def scenario() -> None:
        here, liar = InProcessNode(folders[2]), Member(folders[1])
        proof = Evidence(*(signed_vote(liar, folders[1], block) for block in ("one", "another")))
        async with here.running(), liar.connected(here.node.me):
            for _ in range(3):
                liar.send(here.node.me, proof)
            await until(lambda: here.logged("a member contradicts itself") and file.exists())
            assert [item.first.author for item in here.node.participant.evidence] == [liar.me]
        (line,) = here.logged("a member contradicts itself")
        assert (line["member"], line["kind"]) == ("node-1", "Vote")
        file.unlink()  # as if the node had been killed before it was written
        again = InProcessNode(folders[2])
        async with again.running():
            (found,) = status_of(again.node).evidence
            assert (found.member, found.number, found.file) == ("node-1", 5, file.name)

    asyncio.run(scenario())
    federation = folders[2] / read_node(folders[2]).federation
    checked = defl("verify", federation, "--evidence", file)
    assert checked.code == 0, checked.text
    assert "proven: node-1 signed two different votes in view 5." in checked.text
    as_json = defl("verify", federation, "--evidence", file, "--json").json
    assert (as_json["proven"], as_json["member"], as_json["number"]) == (True, "node-1", 5)
    refused = defl("verify", federation, federation, federation, "--evidence", file)
    assert refused.code == 2
