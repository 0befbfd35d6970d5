"""Which changes take effect in a whole federation: dead joiners, thieves, late extensions."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from defl.changes import Approve, Ready, Remove, Rounds
from defl.duty import Report
from defl.fields import bitmap_of
from defl.ids import Digest, NodeId, Round
from defl.ledger import decode_state
from defl.messages import Offer, Proposal, Transaction, Upd, Vote, ack_statement
from defl.output import Envelope, Event, Finished, Output, Response
from defl.sim.byzantine.liar import Item, Liar
from defl.sim.sim_node import SimNode
from support.builders import name
from support.epochs import Churn

# --- Scenario 9: a dead joiner ---------------------------------------------------------------


@pytest.mark.parametrize("alive", [True, False])
def test_a_joiner_that_died_after_its_ready_does_not_become_a_member(alive: bool) -> None:
    """Its READY names a model that is kept for 32 rounds. It is approved four rounds later."""
    churn = Churn(4, tau=32)
    joiner = churn.add_machine("joiner")
    churn.run_until_round(1)
    digest = churn.propose(0, churn.add(joiner, "eve"))
    churn.approve(digest, 1)  # one short
    submit_ready(churn, joiner)
    churn.run_until(lambda: bool(churn.newest.state.ready))
    if not alive:
        churn.switch_off(joiner)
    said_in = churn.newest.state.ready[0].round
    churn.run_until_round(said_in + 4, 0, 1, 2, 3)
    churn.approve(digest, 2)
    churn.run_until_round(12, 0, 1, 2, 3)

    assert churn.newest.epoch == (1 if alive else 0)
    assert churn.one_history()


def submit_ready(churn: Churn, joiner: int) -> None:
    """As a guest of some members already could: its READY reaches the ledger before the quorum."""
    member = churn.participant(0)
    closed = member.state.last
    assert closed is not None
    facts = member.federation
    signer = churn.cluster.signers[joiner]
    unsigned = Ready(Round(member.state.round + 1), signer.public_key, closed.base, b"")
    signature = signer.sign(unsigned.statement(facts.chain, facts.epoch))
    member.replica.submit(replace(unsigned, signature=signature), churn.cluster.now)


def test_a_joiner_whose_approval_was_withdrawn_stays_outside_until_it_is_given_again() -> None:
    """The joiner starts only afterwards, and somebody repeats the old APPROVE in each round."""
    churn = Churn(4, rounds=14)
    joiner = churn.add_machine("joiner")
    churn.switch_off(joiner)
    churn.run_until_round(1)
    digest = churn.propose(0, churn.add(joiner, "eve"))
    old: list[Approve] = []
    remember_answers(churn, old)
    churn.approve(digest, 1, 2)
    churn.run_until(lambda: approvals_of(churn, digest) == (0, 1, 2))
    churn.withdraw(digest, 2)
    churn.run_until(lambda: approvals_of(churn, digest) == (0, 1))
    churn.switch_on(joiner)
    start = churn.newest.state.round
    for round_ in range(start + 1, start + 5):
        for answer in old:
            churn.participant(3).replica.submit(answer, churn.cluster.now)
        churn.run_until_round(round_, 0, 1, 2, 3)
        assert approvals_of(churn, digest) == (0, 1)
    assert any(answer.author == 2 and answer.agrees for answer in old)
    assert churn.newest.epoch == 0

    churn.approve(digest, 2)
    churn.run_until_epoch(1, 0, 1, 2, 3, joiner)
    assert churn.one_history()
    assert not churn.accusations


def test_an_approval_that_is_withdrawn_at_once_does_not_take_effect() -> None:
    """Its operator thinks better of it before the log has recorded the approval."""
    churn = Churn(4)
    churn.run_until_round(1)
    digest = churn.propose(0, Rounds(Round(20)))
    churn.approve(digest, 1, 2)
    churn.withdraw(digest, 2)
    churn.run_until_round(churn.newest.state.round + 2)

    assert churn.newest.epoch == 0
    assert approvals_of(churn, digest) == (0, 1)
    churn.approve(digest, 3)
    churn.run_until_epoch(1)
    assert churn.one_history()


def remember_answers(churn: Churn, answers: list[Approve]) -> None:
    def watch(_node: SimNode, report: Report) -> None:
        for committed in report.committed:
            answers.extend(tx for tx in committed.block.transactions if isinstance(tx, Approve))

    churn.cluster.watchers.append(watch)


# --- Scenario 10: a thief --------------------------------------------------------------------


def test_the_owners_new_key_wins_over_the_leave_that_the_thief_signs() -> None:
    """Both would take effect at one close; at most f = 1 of five may go or be replaced."""
    victim = 4
    churn = Churn(5)
    machine = churn.add_machine("the owner's new machine")
    churn.run_until_round(1)
    rescue = churn.propose(0, churn.replace_key(victim, machine))
    churn.approve(rescue, 1, 2)
    hold_next_round(churn)
    churn.propose(victim, Remove(NodeId(victim)))
    churn.approve(rescue, 3)
    churn.run_until(lambda: bool(churn.newest.state.ready))  # the new machine is up
    churn.cluster.traffic.censor = None
    churn.run_until_epoch(1, 0, 1, 2, 3, machine)

    ended = decode_state(churn.node(0).disk.handovers[0].snapshot.state)
    assert [change.author for change in ended.changes] == [0, victim]
    members = churn.newest.federation.members
    assert members[victim].active
    assert members[victim].key == churn.node(machine).key
    assert churn.participant(machine).me == victim
    churn.run_until_round(12, 0, 1, 2, 3, machine)
    assert churn.newest.epoch == 1
    assert churn.one_history()


def hold_next_round(churn: Churn) -> None:
    """A round closes, and the one after it stays open: nobody hears of updates for it."""
    start = churn.newest.state.round
    churn.run_until(lambda: churn.newest.state.round > start)
    churn.cluster.traffic.censor = lambda _source, _target, message: isinstance(message, Offer)


def test_a_stolen_key_that_was_replaced_is_not_let_in_again() -> None:
    """A quorum approves the old machine under another name, an epoch and more later. The change
    stays without effect, and a machine that slept meanwhile reads the same from the handovers."""
    stolen, sleeper = 4, 3
    churn = Churn(5, rounds=14)
    machine = churn.add_machine("the owner's new machine")
    churn.run_until_round(1)
    churn.switch_off(sleeper)
    churn.change(churn.replace_key(stolen, machine), approvers=(1, 2, 4))
    churn.run_until_epoch(1, 0, 1, 2, machine)
    churn.change(Rounds(Round(16)), approvers=(1, 2, machine))
    churn.run_until_epoch(2, 0, 1, 2, machine)
    churn.switch_on(sleeper)
    churn.run_until_epoch(2, sleeper)
    again = churn.propose(0, churn.add(stolen, "eve"))
    churn.approve(again, 1, 2, sleeper)
    churn.run_until(lambda: len(approvals_of(churn, again)) >= 4)
    start = churn.newest.state.round
    churn.run_until_round(start + 3)

    assert churn.newest.epoch == 2
    for member in churn.members:
        facts = churn.participant(member).federation
        assert facts.membership.replaced_keys == (churn.node(stolen).key,)
    assert churn.one_history()


def approvals_of(churn: Churn, digest: Digest) -> tuple[NodeId, ...]:
    change = churn.newest.state.change(digest)
    return change.approvals if change is not None else ()


def test_an_owner_whose_thief_has_left_in_its_name_returns_with_a_new_key() -> None:
    victim = 4
    churn = Churn(5, rounds=16)
    churn.run_until_round(1)
    churn.propose(victim, Remove(NodeId(victim)))
    churn.run_until_epoch(1, 0, 1, 2, 3)
    assert not churn.newest.federation.members[victim].active

    machine = churn.add_machine("the owner's new machine")
    churn.change(churn.replace_key(victim, machine))
    churn.run_until_epoch(2, 0, 1, 2, 3, machine)
    returned_in = churn.newest.state.round
    churn.finish()

    assert churn.participant(machine).me == victim
    last = churn.newest.state.last
    assert last is not None
    assert last.round > returned_in
    assert NodeId(victim) in [ref.author for ref in last.updates]
    assert churn.one_history()
    assert not churn.accusations


# --- Scenario 11: a suffix inside the closing block -------------------------------------------


class SuffixLeader(Liar):
    """As leader: behind the other transactions, an update of the round after, certified in this
    epoch, and its approval of every pending change."""

    answers: list[Response]  # to the transactions that it put there

    def handle(self, event: Event, now: float) -> Output:
        output = super().handle(event, now)
        for committed in output.committed:
            for transaction, answer in zip(
                committed.block.transactions, committed.responses, strict=True
            ):
                if isinstance(transaction, Upd) and transaction.digest == name("suffix"):
                    self.answers.append(answer)
        return output

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case Envelope(to=None, message=Proposal() as proposal) if self._epoch == 0:
                transactions = (*proposal.block.transactions, *self._suffix())
                return (Envelope(None, self._with_transactions(proposal, transactions)),)
        return (item,)

    def _suffix(self) -> Iterable[Transaction]:
        state, facts = self.participant.state, self._federation
        about = Round(state.round + 2), self._me, name("suffix"), facts.initial, 400
        round_, author, digest, base, size = about
        message = ack_statement(self._chain, self._epoch, round_, author, digest, base, size)
        ackers = self._committee.members
        acks = tuple(message + self._committee.keys[acker] for acker in ackers)  # free to forge
        bitmap = bitmap_of(ackers, self._committee.slots)
        upd = Upd(round_, author, digest, size, base, bitmap, acks, b"")
        yield replace(upd, signature=self._signed(upd))
        for change in state.changes:
            if self._me not in change.approvals:
                approve = Approve(Round(state.round + 1), self._me, change.digest, True, b"")
                yield replace(approve, signature=self._signed(approve))

    def _signed(self, unsigned: Upd | Approve) -> bytes:
        return self._signer.sign(unsigned.statement(self._chain, self._epoch))


def test_nothing_behind_the_closing_transaction_reaches_the_next_epoch() -> None:
    """Three leaders put it into every block; the last of them closes the round of the boundary.
    They are more than f: with some seeds their forged update counts in a round before that."""
    SuffixLeader.answers = []
    churn = Churn(4, seed=2, byzantine={NodeId(member): SuffixLeader for member in range(3)})
    churn.run_until_round(1)
    churn.change(Rounds(Round(8)))
    churn.run_until_epoch(1)

    assert Response.EPOCH_ENDED in SuffixLeader.answers
    state = churn.participant(3).state
    assert name("suffix") not in [ref.digest for ref in state.current]
    assert state.changes == ()
    assert churn.one_history()


# --- Scenario 14: an extension in the last round ----------------------------------------------


@pytest.mark.parametrize("in_time", [True, False])
def test_an_extension_is_agreed_before_the_last_round_closes_or_never(in_time: bool) -> None:
    churn = Churn(4, rounds=3)
    churn.run_until_round(1)
    hold_next_round(churn)
    digest = churn.propose(0, Rounds(Round(5)))
    churn.approve(digest, 1)
    assert churn.newest.state.round == 2
    if in_time:
        churn.approve(digest, 2)
        churn.run_until(lambda: len(churn.newest.state.changes[0].approvals) == 3)
    churn.cluster.traffic.censor = None
    if not in_time:
        churn.run_until_round(3)
        churn.approve(digest, 2, 3)
    churn.finish()

    assert churn.newest.epoch == (1 if in_time else 0)
    assert {churn.participant(m).state.round for m in range(4)} == {5 if in_time else 3}
    assert churn.one_history()
    assert not churn.accusations


def test_a_bare_quorum_that_extends_its_last_round_closes_the_rounds_after_it() -> None:
    """No round closes without the AGGs of all three, also the first one after the boundary: every
    member must submit its AGG again, though it had submitted that of what was the last round."""
    live = (0, 1, 2)
    churn = Churn(4, rounds=3)
    churn.switch_off(3)
    churn.run_until_round(1, *live)
    hold_next_round(churn)
    assert churn.newest.state.round == 2
    digest = churn.propose(0, Rounds(Round(6)))
    churn.approve(digest, 1, 2)
    churn.run_until(lambda: len(churn.newest.state.changes[0].approvals) == 3)
    churn.cluster.traffic.censor = None
    churn.run_until_round(6, *live)

    assert churn.newest.epoch == 1
    assert churn.one_history()
    assert not churn.accusations


def test_nobody_finishes_while_an_extension_waits_for_its_proof() -> None:
    """The votes that prove the end of the epoch are lost for longer than a node with the last model
    serves the others. What was the last round is not, so nobody may go."""
    churn = Churn(4, rounds=2)
    churn.run_until_round(1)
    churn.cluster.traffic.censor = lambda source, _target, message: (
        isinstance(message, Vote) and churn.participant(source).state.ended
    )
    churn.change(Rounds(Round(4)))
    churn.run_until(lambda: all(churn.participant(m).state.ended for m in range(4)))
    churn.run_for(2 * churn.newest.federation.timing.grace_s)
    assert churn.newest.epoch == 0
    assert not churn.notices_of(Finished)

    churn.cluster.traffic.censor = None
    churn.finish()
    assert {churn.participant(m).state.round for m in range(4)} == {4}


def test_an_earlier_end_may_be_agreed_too() -> None:
    churn = Churn(4, rounds=12)
    churn.run_until_round(1)
    churn.change(Rounds(Round(6)))
    churn.finish()

    assert {churn.participant(m).state.round for m in range(4)} == {6}
    assert churn.newest.epoch == 1
    assert churn.one_history()
