"""Which changes take effect together, and when: the limits of a boundary in a whole federation."""

from defl.changes import Operation, Remove
from defl.ids import OUTSIDER, Digest, NodeId
from defl.messages import Chunk, Message, Offer
from defl.output import ApproveChange
from support.epochs import Churn


def active(churn: Churn) -> tuple[NodeId, ...]:
    return churn.newest.federation.committee.members


def test_keys_of_more_than_f_members_are_not_replaced_at_one_boundary() -> None:
    """Both changes are approved and both machines are ready: one waits for the next boundary."""
    churn = Churn(4)
    machines = [churn.add_machine(f"new {member}") for member in (2, 3)]
    churn.run_until_round(1)
    both = [churn.replace_key(m, machine) for m, machine in zip((2, 3), machines, strict=True)]
    churn.change(*both, by=0, approvers=(1, 2, 3))  # as one: refused for ever
    churn.run_until_round(4)
    assert churn.newest.epoch == 0

    digests = [churn.propose(by, operation) for by, operation in zip((0, 1), both, strict=True)]
    for digest in digests:
        churn.approve(digest, 0, 1, 2, 3)
    churn.run_until_epoch(1)

    replaced = [m for m in (2, 3) if _key(churn, m) != churn.node(m).key]
    assert len(replaced) == 1
    churn.finish()
    assert churn.one_history()


def _key(churn: Churn, member: int) -> bytes:
    return churn.newest.federation.committee.keys[member]


def test_removed_and_replaced_members_are_at_most_f_together() -> None:
    """Of five members one may go at a boundary: whoever loses its disk counts like a leaver."""
    churn = Churn(5)
    machine = churn.add_machine("new 4")
    churn.run_until_round(1)
    digests = [churn.propose(0, Remove(NodeId(3))), churn.propose(1, churn.replace_key(4, machine))]
    for digest in digests:
        churn.approve(digest, 0, 1, 2, 4)
    churn.run_until_epoch(1)

    removed, replaced = 3 not in active(churn), _key(churn, 4) == churn.node(machine).key
    assert removed != replaced
    churn.finish()
    assert churn.one_history()


def test_at_most_f_keys_are_new_at_one_boundary() -> None:
    """Both joiners are approved and ready; among five or six members one may be new at a time."""
    churn = Churn(4)
    joiners = [churn.add_machine(name) for name in ("eve", "fay")]
    churn.run_until_round(1)
    digests = [
        churn.propose(by, churn.add(machine, name))
        for by, machine, name in zip((0, 1), joiners, ("eve", "fay"), strict=True)
    ]
    for digest in digests:
        churn.approve(digest, 0, 1, 2, 3)
    churn.run_until_epoch(1)

    assert len(active(churn)) == 5
    churn.finish()
    assert churn.one_history()


def test_updates_of_the_closing_round_survive_f_empty_machines_and_f_withholders() -> None:
    """Three hold member 3's update: 3, whose place an empty machine takes; 2, which withholds all
    blobs from then on; and 1, from which everybody gets it."""
    churn = Churn(4)
    machine = churn.add_machine("new 3")
    of_member_3: set[Digest] = set()
    served_by: set[NodeId] = set()

    def hide(source: NodeId, target: NodeId, message: Message) -> bool:
        if isinstance(message, Offer) and message.author == 3 and churn.newest.epoch == 0:
            of_member_3.add(message.manifest.digest)
        if not isinstance(message, Chunk):
            return False
        switched = churn.participant(target).epoch > 0
        if source in (2, 3) and switched:  # the former author may be gone
            return True
        if message.digest not in of_member_3:
            return False
        if switched:
            served_by.add(source)
        return target in (0, machine) and not switched

    churn.run_until_round(1)
    churn.cluster.traffic.censor = hide
    churn.change(churn.replace_key(3, machine))
    churn.run_until_epoch(1, 0, 1, 2, machine)
    closing = churn.newest.state.last
    assert closing is not None
    assert not of_member_3.isdisjoint(ref.digest for ref in closing.updates)
    # Members need the model of the closing round, and so each of its updates, for the next one.
    churn.run_until_round(closing.round + 2, 0, 1, machine)

    assert 1 in served_by
    assert churn.one_history()


def test_a_leave_that_lowers_f_needs_approvals() -> None:
    churn = Churn(7, rounds=6)
    churn.run_until_round(1)
    digest = churn.propose(6, Remove(NodeId(6)))
    churn.run_until_round(4)
    assert churn.newest.epoch == 0

    churn.approve(digest, 0, 1, 2, 3)
    churn.run_until_epoch(1)

    assert active(churn) == tuple(range(6))


def test_of_two_approved_leaves_only_those_are_taken_that_keep_f() -> None:
    """With eight members f is 2; the first leave keeps it, both together would lower it."""
    churn = Churn(8, rounds=6)
    churn.run_until_round(1)
    leaves = [churn.propose(m, Remove(NodeId(m))) for m in (6, 7)]
    for digest in leaves:
        churn.approve(digest, 0, 1, 2, 3, 4)
    churn.run_until_epoch(1)

    assert active(churn) in ((0, 1, 2, 3, 4, 5, 7), (0, 1, 2, 3, 4, 5, 6))
    churn.finish()
    assert churn.newest.federation.committee.faults == 2


def test_of_two_conflicting_changes_one_takes_effect() -> None:
    """Two machines are to take member 6's place, and both changes are approved."""
    churn = Churn(7, rounds=6)
    first, second = churn.add_machine("first"), churn.add_machine("second")
    churn.run_until_round(1)
    rivals = ((0, first), (1, second))
    digests = [churn.propose(by, churn.replace_key(6, machine)) for by, machine in rivals]
    earlier = churn.newest.state.changes[0].digest
    for digest in digests:
        churn.approve(digest, 0, 1, 2, 3, 4)
    churn.run_until_epoch(1)
    churn.finish()

    winner, loser = (first, second) if earlier == digests[0] else (second, first)
    assert _key(churn, 6) == churn.node(winner).key
    assert churn.participant(loser).me == OUTSIDER
    assert churn.newest.epoch == 1
    assert churn.one_history()


def test_approvals_after_the_boundary_count_for_nothing() -> None:
    """A change that was not approved in its epoch has lapsed, and so have its approvals."""
    churn = Churn(4)
    joiner, other = churn.add_machine("joiner"), churn.add_machine("other")
    churn.run_until_round(1)
    late = churn.propose(0, churn.add(other, "mallory"))
    churn.approve(late, 1)
    churn.change(churn.add(joiner, "eve"), by=2, approvers=(0, 1, 3))
    churn.run_until_epoch(1)
    assert churn.newest.state.changes == ()

    for machine in (1, 2, 3, joiner):
        churn.cluster.operator(NodeId(machine), ApproveChange(late))
    churn.finish()

    assert churn.newest.epoch == 1
    assert len(active(churn)) == 5


def test_a_federation_grows_to_seven_and_shrinks_to_four_in_one_run() -> None:
    churn = Churn(4, rounds=30)
    churn.run_until_round(1)
    sizes = [len(active(churn))]

    def change(*operations: Operation) -> None:
        epoch = churn.newest.epoch
        members = churn.members
        churn.change(*operations, by=members[0], approvers=tuple(members[1:]))
        churn.run_until_epoch(epoch + 1)
        sizes.append(len(active(churn)))

    joiners = [churn.add_machine(f"joiner {number}") for number in range(4)]
    change(churn.add(joiners[0], "a"))
    change(Remove(NodeId(0)))
    change(churn.add(joiners[1], "b"))
    change(churn.add(joiners[2], "c"), churn.add(joiners[3], "d"))
    change(Remove(NodeId(1)), Remove(NodeId(2)))
    change(Remove(NodeId(3)))
    churn.finish()

    assert sizes == [4, 5, 4, 5, 7, 5, 4]
    assert active(churn) == (4, 5, 6, 7)
    assert churn.newest.state.round == 30
    assert churn.one_history()
    assert not churn.accusations
