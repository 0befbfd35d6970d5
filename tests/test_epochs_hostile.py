"""Liars across a boundary: expelled members, thieves, machines that are not ready, false histories,
and more liars than a federation tolerates."""

import random
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from defl.changes import Approve, Change, Operation, Ready, Remove, Rounds
from defl.crypto import Signer
from defl.fields import is_in
from defl.ids import OUTSIDER, Digest, NodeId, Round, View
from defl.messages import (
    Agg,
    Gossip,
    Message,
    Timeout,
    Transaction,
    Vote,
    timeout_statement,
    vote_statement,
)
from defl.output import Departed, Envelope, Event, Output
from defl.participant import Participant
from defl.participant_parts import present_epoch
from defl.sim.byzantine.liar import Item, Liar
from defl.sim.sim_node import Honest
from support.epochs import Churn
from test_epochs_changes import submit_ready

GONE = NodeId(4)


class StaysOn(Liar):
    """No member any more, by its old key: it goes on signing in its old id's name, for the old
    epoch and for the new one. It does not go when nobody needs it."""

    def handle(self, event: Event, now: float) -> Output:
        output = super().handle(event, now)
        if self._me != OUTSIDER or not self._may_flood(now):
            return output
        lies = [*self._lies(self._epoch), *self._lies(self._epoch - 1)]
        sent = tuple(Envelope(None, lie, epoch) for lie, epoch in lies)
        notices = tuple(one for one in output.notices if not isinstance(one, Departed))
        return replace(output, send=output.send + sent, notices=notices, wake_at=now + 0.5)

    def _lies(self, epoch: int) -> Iterable[tuple[Message, int]]:
        replica, chain = self.participant.replica, self._chain
        head, view = replica.head.id, replica.view
        vote = self._signer.sign(vote_statement(chain, epoch, view, head))
        yield Vote(epoch, view, head, GONE, vote, View(0), View(0)), epoch
        qc = replica.record.high_qc
        timeout = self._signer.sign(timeout_statement(chain, epoch, view, qc.view))
        yield Timeout(epoch, view, qc, None, GONE, timeout), epoch
        open_round = Round(self._round + 1)
        for unsigned in (
            Agg(open_round, GONE, b""),
            Change(open_round, GONE, (Rounds(Round(50)),), b""),
            *(
                Approve(open_round, GONE, c.digest, True, b"")
                for c in self.participant.state.changes
            ),
        ):
            signature = self._signer.sign(unsigned.statement(chain, epoch))
            yield Gossip((replace(unsigned, signature=signature),)), epoch


@pytest.mark.parametrize("how", ["expelled", "replaced"])
def test_who_is_no_member_any_more_has_no_say_by_its_old_key(how: str) -> None:
    """One of five: an expelled member, or a thief whose victim has another key by now."""
    churn = Churn(5, byzantine={GONE: StaysOn})
    churn.run_until_round(1)
    honest = [0, 1, 2, 3]
    operation: Operation = Remove(GONE)
    if how == "replaced":
        machine = churn.add_machine("the owner's new machine")
        operation = churn.replace_key(GONE, machine)
        honest.append(machine)
    churn.change(operation, approvers=(1, 2, 3))
    churn.run_until_epoch(1, *honest, GONE)
    first = churn.newest.federation.first_round
    churn.run_until_round(12, *honest)

    assert churn.newest.epoch == 1
    assert churn.cluster.traffic.faults_refused["WrongAuthor"] > 0
    for machine in honest:
        state = churn.participant(machine).state
        authors = {ref.author for closed in state.closed for ref in closed.updates}
        assert state.round >= first
        assert (GONE in authors) == (how == "replaced")
        if how == "expelled":
            qc = churn.participant(machine).replica.record.high_qc
            assert not is_in(qc.signers, GONE)
    assert churn.one_history()


def test_a_thief_cannot_undo_the_replacement_in_the_old_epoch() -> None:
    """In the epoch that is still running the thief is a member, one of f: it may propose and
    approve, but its leave and its own changes do not stop q others."""
    churn = Churn(5)
    machine = churn.add_machine("the owner's new machine")
    churn.run_until_round(1)
    rescue = churn.propose(0, churn.replace_key(GONE, machine))
    churn.propose(GONE, churn.replace_key(0, machine))  # the same machine in another place
    churn.approve(rescue, 1, 2, 3)
    churn.run_until_epoch(1, 0, 1, 2, 3, machine)

    assert churn.participant(machine).me == GONE
    assert churn.participant(0).me == 0
    churn.run_until_round(12, 0, 1, 2, 3, machine)
    assert churn.one_history()


def test_a_joiner_that_lies_about_being_ready_costs_one_of_f_and_nothing_else() -> None:
    """Its READY is signed, but the machine is off."""
    churn = Churn(4)
    joiner = churn.add_machine("joiner")
    churn.run_until_round(1)
    churn.switch_off(joiner)
    churn.change(churn.add(joiner, "eve"))
    churn.run_until(lambda: len(churn.newest.state.changes[0].approvals) >= 3)
    submit_ready(churn, joiner)
    churn.run_until_epoch(1, 0, 1, 2, 3)
    churn.run_until_round(12, 0, 1, 2, 3)

    assert churn.newest.federation.committee.size == 5
    assert churn.newest.epoch == 1
    assert churn.one_history()


# --- False histories ---------------------------------------------------------------------------


def joiner_that_awaits(churn: Churn, chain: bytes) -> int:
    """A machine whose operator was told this fingerprint by phone."""
    machine = churn.add_machine("joiner that awaits")
    node = churn.node(machine)
    durable = node.disk.recovered()
    facts = present_epoch(churn.cluster.federation, durable)
    signer = churn.cluster.signers[machine]
    node.behaviour = Honest(Participant(facts, OUTSIDER, signer, durable, awaits_chain=chain))
    return machine


@pytest.mark.parametrize("genuine", [True, False])
def test_a_joiner_is_ready_only_in_the_history_that_its_operator_was_told(genuine: bool) -> None:
    """Whoever holds the first members' keys could lead it into an epoch 1 of their own making;
    here the genuine one is not what it was told."""
    churn = Churn(5, rounds=14)
    churn.run_until_round(1)
    churn.propose(4, Remove(GONE))
    churn.run_until_epoch(1, 0, 1, 2, 3)
    chain = churn.newest.federation.chain
    joiner = joiner_that_awaits(churn, chain[:8] if genuine else b"another!")
    churn.change(churn.add(joiner, "eve"), by=0, approvers=(1, 2, 3))
    churn.run_until_round(14, 0, 1, 2, 3)

    assert churn.newest.epoch == (2 if genuine else 1)
    assert (churn.participant(joiner).me == OUTSIDER) is not genuine
    ready = [key for one in (0, 1, 2, 3) for key in churn.participant(one).state.ready]
    assert ready == []


def test_a_stale_history_shown_by_f_liars_does_not_keep_a_joiner_out() -> None:
    """Only member 3 speaks to it at first, and shows it nothing after epoch 1."""
    churn = Churn(4, rounds=40)
    churn.run_until_round(1)
    others = [churn.add_machine(text) for text in ("a", "b")]
    for epoch, machine in enumerate(others, start=1):
        churn.change(churn.add(machine, f"guest-{epoch}"))
        churn.run_until_epoch(epoch)
    joiner = joiner_that_awaits(churn, churn.newest.federation.chain[:8])

    def hidden(source: NodeId, target: NodeId, message: Message) -> bool:
        if joiner not in (source, target):
            return False
        return 3 not in (source, target) or churn.participant(joiner).epoch > 0

    churn.cluster.traffic.censor = hidden
    churn.change(churn.add(joiner, "eve"))
    churn.run_until_epoch(1, joiner)
    churn.run_for(10.0)
    assert churn.participant(joiner).epoch == 1
    assert churn.newest.epoch == 2
    churn.cluster.traffic.censor = lambda s, t, _: {s, t} == {NodeId(3), NodeId(joiner)}
    churn.run_until_epoch(3, joiner)

    assert churn.participant(joiner).me != OUTSIDER
    churn.run_until_round(churn.newest.state.round + 2, 0, 1, 2, *others, joiner)
    assert churn.one_history()


# --- Floods ------------------------------------------------------------------------------------


class FloodsChanges(Liar):
    """Every READY and approval that it can think of, and another large change in each round."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._changed = Round(0)

    def besides(self, event: Event, now: float) -> Iterable[Item]:  # noqa: ARG002
        if not self._may_flood(now):
            return ()
        open_round = Round(self._round + 1)
        model = self.participant.state.closed[-1].base if self.participant.state.closed else b""
        lies: list[Transaction] = [
            Ready(open_round, bytes(self._noise()), Digest(model or bytes(32)), b""),
            Approve(open_round, self._me, self._noise(), True, b""),
            Approve(Round(open_round + 1), self._me, self._noise(), True, b""),
        ]
        if self._changed < open_round:
            self._changed = open_round
            ends = tuple(Rounds(Round(1000 + open_round * 8 + i)) for i in range(8))
            lies.append(Change(open_round, self._me, ends, b""))
        return [Envelope(None, Gossip(tuple(map(self._signed, lies))))]

    def _signed(self, unsigned: Transaction) -> Transaction:
        message = unsigned.statement(self._chain, self._epoch)
        signature = self._signer.sign(message)
        if isinstance(unsigned, Ready):
            signature = message + unsigned.key  # it holds all these keys
        return replace(unsigned, signature=signature)


def test_floods_of_changes_approvals_and_readies_stay_out_of_memory_and_ledger() -> None:
    liar = 3
    churn = Churn(4, rounds=8, byzantine={NodeId(liar): FloodsChanges})
    joiner = churn.add_machine("joiner")
    churn.run_until_round(2)
    churn.change(churn.add(joiner, "eve"), by=0, approvers=(1, 2))
    waiting = []

    def watch() -> bool:
        waiting.append(churn.participant(0).stored["transactions"])
        return churn.participant(0).state.round >= 8

    churn.run_until(watch)

    assert churn.newest.epoch == 1, "the liar's change does not stand in the way"
    state = churn.participant(0).state
    assert len(state.changes) <= 1
    assert state.ready == ()
    assert max(waiting) <= 2 * 3 * 5 + 4
    assert churn.one_history()
