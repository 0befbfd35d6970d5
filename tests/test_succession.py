"""Who the members of the next epoch are: every combination of up to three pending changes, judged
by invariants that share no code with the rule, and one table of examples per limit."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from defl.aggregation.rules import RULES
from defl.cards import Card
from defl.changes import Add, Operation, Remove, ReplaceKey, Rounds
from defl.committee import REPLACED_KEYS_MAX, Federation, Member, Membership
from defl.fields import MEMBERS_MAX
from defl.ids import NO_DIGEST, Digest, NodeId, Round, digest_of
from defl.node.setup.requirements import computable
from defl.sim.scenario import federation_of, signers_of
from defl.succession import PendingChange, ReadyKey, chosen_changes, next_membership

ROUNDS = 10
CLOSING = Round(4)
TARGET = NodeId(3)  # whom others expel, or whose key is replaced


@cache
def federation(active: int, departed: int = 1) -> Federation:
    """So many active members, and after them some that have left."""
    signers, _ = signers_of(active + departed, seed=1, real=False)
    facts, _ = federation_of(signers, rounds=ROUNDS)
    members = tuple(
        replace(member, active=place < active) for place, member in enumerate(facts.members)
    )
    return replace(facts, membership=replace(facts.membership, members=members))


def card(name: str, text: str) -> Card:
    return Card(name, digest_of(text.encode()), b"", "", 0, bytes(64))


def pending(author: int, operations: Sequence[Operation], approvals: int) -> PendingChange:
    digest = digest_of(msgpack.encode((author, operations)))
    others = [NodeId(member) for member in range(approvals) if member != author]
    approved = tuple(sorted([NodeId(author), *others[: approvals - 1]]))
    return PendingChange(Round(1), NodeId(author), digest, tuple(operations), approved)


# --- Every combination -----------------------------------------------------------------------

Choice = tuple[PendingChange, tuple[ReadyKey, ...]]


def menu(facts: Federation, author: int, closing: Round) -> list[Choice]:
    """What one author may have proposed: approved or one approval short, its machines ready just
    in time or one round too early."""
    gone = NodeId(facts.committee.size)
    kinds: list[tuple[Operation, ...]] = [
        (Add(card("same", "same machine")),),
        tuple(Add(card(f"{place}-{author}", f"{place} of {author}")) for place in "ab"),
        (Remove(NodeId(author)),),
        (Remove(TARGET),),
        (Remove(TARGET), Remove(NodeId(2))),
        (ReplaceKey(TARGET, card(facts.members[TARGET].name, f"key by {author}")),),
        (ReplaceKey(gone, card(facts.members[gone].name, "machine that returns")),),
        (Rounds(Round(closing + 5)),),
        (Rounds(closing),),
    ]
    choices = []
    quorum = facts.committee.quorum
    for operations, approvals in product(kinds, (quorum, quorum - 1)):
        change = pending(author, operations, approvals)
        keys = [op.card.key for op in operations if isinstance(op, Add | ReplaceKey)]
        for rounds_ago in (1, 2) if keys and approvals == quorum else (1,):
            ready = tuple(ReadyKey(key, Round(closing - rounds_ago)) for key in keys)
            choices.append((change, ready))
    return choices


def combinations(facts: Federation, closing: Round) -> Iterator[tuple[Choice, ...]]:
    menus = [menu(facts, author, closing) for author in range(3)]
    for authors in ((), (0,), (0, 1), (1, 0), (0, 1, 2)):
        yield from product(*(menus[author] for author in authors))


class Expected:
    """The limits once more, counted from the operations alone."""

    def __init__(self, facts: Federation, closing: Round) -> None:
        self.active = set(facts.committee.members)
        self.n = len(self.active)
        self.closing = closing

    def faults(self, operations: Sequence[Operation]) -> int:
        return (self.size(operations) - 1) // 3

    def size(self, operations: Sequence[Operation]) -> int:
        added = sum(isinstance(op, Add) for op in operations)
        gone = {op.member for op in operations if isinstance(op, Remove)}
        back = {op.member for op in operations if isinstance(op, ReplaceKey)}
        return len((self.active - gone) | back) + added

    def allow(self, operations: Sequence[Operation]) -> bool:
        added = sum(isinstance(op, Add) for op in operations)
        replaced = sum(isinstance(op, ReplaceKey) for op in operations)
        removed = sum(isinstance(op, Remove) for op in operations)
        ids = [op.member for op in operations if isinstance(op, Remove | ReplaceKey)]
        keys = [op.card.key for op in operations if isinstance(op, Add | ReplaceKey)]
        ends = [op.rounds for op in operations if isinstance(op, Rounds)]
        return (
            self.size(operations) >= 4
            and removed + replaced <= (self.n - 1) // 3
            and added + replaced <= self.faults(operations)
            and len(set(ids)) == len(ids)
            and len(set(keys)) == len(keys)
            and len(ends) <= 1
            and all(end > self.closing for end in ends)
        )

    def take(
        self, changes: Sequence[PendingChange], present: set[bytes], quorum: int
    ) -> list[PendingChange]:
        approved = [change for change in changes if len(change.approvals) >= quorum]
        leaves = [
            change
            for change in changes
            if len(change.approvals) < quorum and change.operations == (Remove(change.author),)
        ]
        taken: list[PendingChange] = []
        faults = (self.n - 1) // 3
        for change in approved + leaves:
            sum_ = operations_of([*taken, change])
            keys = {op.card.key for op in change.operations if isinstance(op, Add | ReplaceKey)}
            agreed = change in approved and not taken
            if not self.allow(sum_) or not keys <= present:
                continue
            if self.faults(sum_) < faults and not agreed:
                continue
            faults = self.faults(sum_)
            taken.append(change)
        return taken


def operations_of(changes: Sequence[PendingChange]) -> list[Operation]:
    return [operation for change in changes for operation in change.operations]


def check_members(before: Federation, after: Membership, operations: list[Operation]) -> None:
    """Ids never move, each operation has exactly its effect, nobody else changes."""
    replaced = {op.member: op.card for op in operations if isinstance(op, ReplaceKey)}
    removed = {op.member for op in operations if isinstance(op, Remove)}
    added = [op.card for op in operations if isinstance(op, Add)]
    for id_, member in enumerate(before.members):
        now = after.members[id_]
        assert now.name == member.name
        assert now.key == (replaced[NodeId(id_)].key if id_ in replaced else member.key)
        assert now.active == (id_ in replaced or (member.active and id_ not in removed))
    new = after.members[len(before.members) :]
    assert new == tuple(Member(one.name, one.key, one.certificate, one.address) for one in added)
    assert len({member.key for member in after.members}) == len(after.members)
    assert len({member.name for member in after.members}) == len(after.members)


@pytest.mark.parametrize(
    ("active", "closing"), [*((active, CLOSING) for active in range(4, 10)), (5, Round(ROUNDS))]
)
def test_every_combination_of_three_changes_keeps_the_limits(active: int, closing: Round) -> None:
    facts = federation(active)
    quorum, faults = facts.committee.quorum, facts.committee.faults
    expected = Expected(facts, closing)
    boundaries = 0
    for choices in combinations(facts, closing):
        changes = tuple(change for change, _ in choices)
        newest: dict[bytes, Round] = {}
        for one in (one for _, ready in choices for one in ready):
            newest[one.key] = max(one.round, newest.get(one.key, Round(0)))
        ready = tuple(ReadyKey(key, round_) for key, round_ in newest.items())
        present = {key for key, round_ in newest.items() if closing - round_ <= 1}
        after = next_membership(facts, closing, changes, ready)

        chosen = expected.take(changes, present, quorum)
        # Nothing but the arguments' values counts: not their identity, nor the order of READYs,
        # nor changes that are not taken.
        if len(changes) < 3:
            assert chosen_changes(facts, closing, changes, ready) == chosen
            copied = msgpack.decode(msgpack.encode(changes), type=tuple[PendingChange, ...])
            assert next_membership(facts, closing, copied, tuple(reversed(ready))) == after
            assert next_membership(facts, closing, tuple(chosen), ready) == after
        operations = operations_of(chosen)
        rounds = next((op.rounds for op in operations if isinstance(op, Rounds)), ROUNDS)
        assert (after is None) == (not operations or rounds <= closing)
        if after is None:
            continue
        boundaries += 1
        check_members(facts, after, operations)
        size = sum(member.active for member in after.members)
        assert size >= 4
        assert expected.allow(operations)
        first = chosen[0]
        sinks_alone = expected.faults(first.operations) < faults
        if (size - 1) // 3 < faults:
            assert sinks_alone
            assert len(first.approvals) >= quorum
        assert after.rounds == rounds > closing
        assert after.first_round == closing + 1
        assert (after.epoch, after.parent, after.origin) == (1, facts.chain, facts.chain)
    assert boundaries > 100


# --- One limit at a time ---------------------------------------------------------------------


def outcome(facts: Federation, *changes: PendingChange, closing: Round = CLOSING) -> list[NodeId]:
    """The authors of the changes that are taken; every machine is ready."""
    keys = [op.card.key for op in operations_of(changes) if isinstance(op, Add | ReplaceKey)]
    ready = tuple(ReadyKey(key, closing) for key in keys)
    return [change.author for change in chosen_changes(facts, closing, changes, ready)]


def add(*texts: str) -> tuple[Operation, ...]:
    return tuple(Add(card(text, text)) for text in texts)


def remove(*members: int) -> tuple[Operation, ...]:
    return tuple(Remove(NodeId(member)) for member in members)


def replace_key(facts: Federation, *members: int) -> tuple[Operation, ...]:
    return tuple(
        ReplaceKey(NodeId(m), card(facts.members[m].name, f"new key of {m}")) for m in members
    )


def approved(facts: Federation, author: int, operations: Sequence[Operation]) -> PendingChange:
    return pending(author, operations, facts.committee.quorum)


@pytest.mark.parametrize(
    ("active", "operations", "taken"),
    [
        (4, remove(3), False),  # three would be left
        (5, remove(3), True),
        (7, remove(3, 4), True),  # f = 2 go, and f sinks, as approved
        (7, remove(3, 4, 5), False),
        (4, add("eve"), True),
        (4, add("eve", "mallory"), False),  # f' = 1 of six
        (5, add("eve", "mallory"), True),  # f' = 2 of seven
        (4, replace_key(federation(4), 3), True),
        (4, replace_key(federation(4), 2, 3), False),
        (7, replace_key(federation(7), 2, 3), True),
        (7, (*replace_key(federation(7), 2), *remove(3)), True),
        (7, (*replace_key(federation(7), 2), *remove(3, 4)), False),
        (7, (*replace_key(federation(7), 2), *add("eve", "mallory")), False),
        (4, (*replace_key(federation(4), 3), *add("eve")), False),
        (7, (*replace_key(federation(7), 3), *remove(3)), False),  # two for one member
        (7, remove(3, 3), False),
        (5, replace_key(federation(5), 5), True),  # it has left, and returns
        (5, remove(5), False),  # it has left already
        (5, remove(6), False),  # there is no such member
        (5, (ReplaceKey(NodeId(6), card("eve", "eve")),), False),
        (5, (ReplaceKey(NodeId(3), card("eve", "eve")),), False),  # another name
        (5, (Add(card("node-5", "eve")),), False),  # the name of one that has left
        (5, (Add(Card("eve", federation(5).members[5].key, b"", "", 0, b"")),), False),  # its key
        (5, (Add(card("eve", "eve")), Add(card("eve", "mallory"))), False),
        (5, (Add(card("eve", "eve")), Add(card("mallory", "eve"))), False),
        (5, (Rounds(CLOSING),), False),
        (5, (Rounds(Round(CLOSING + 1)),), True),
        (5, (Rounds(Round(20)), Rounds(Round(30))), False),
    ],
)
def test_an_approved_change_is_taken_within_the_limits(
    active: int, operations: tuple[Operation, ...], taken: bool
) -> None:
    facts = federation(active)

    assert outcome(facts, approved(facts, 0, operations)) == ([0] if taken else [])


def test_all_epochs_together_have_at_most_a_hundred_members() -> None:
    full = federation(5, MEMBERS_MAX - 5)
    almost = federation(5, MEMBERS_MAX - 6)

    assert outcome(full, approved(full, 0, add("eve"))) == []
    assert outcome(almost, approved(almost, 0, add("eve"))) == [0]
    assert outcome(almost, approved(almost, 0, add("eve", "mallory"))) == []


def after(facts: Federation, operations: tuple[Operation, ...]) -> Federation:
    """The next epoch, which this approved change begins; its machines are ready."""
    change = approved(facts, 0, operations)
    closing = Round(facts.first_round)
    keys = [op.card.key for op in operations if isinstance(op, Add | ReplaceKey)]
    ready = tuple(ReadyKey(key, closing) for key in keys)
    membership = next_membership(facts, closing, (change,), ready)
    assert membership is not None
    return Federation(facts.charter, membership)


def card_of(member: Member, name: str) -> Card:
    return Card(name, member.key, b"", "", 0, bytes(64))


def test_a_replaced_key_never_returns() -> None:
    first = federation(5)
    old, old_gone = first.members[3], first.members[5]
    second = after(first, replace_key(first, 3))
    third = after(second, replace_key(second, 5))  # one that had left returns
    fourth = after(third, remove(3))

    assert fourth.membership.replaced_keys == (old.key, old_gone.key)
    for later in (second, third, fourth):
        for operation in (
            Add(card_of(old, "eve")),
            ReplaceKey(NodeId(3), card_of(old, old.name)),
            ReplaceKey(NodeId(2), card_of(old, later.members[2].name)),
        ):
            assert outcome(later, approved(later, 0, (operation,))) == []
    back = ReplaceKey(NodeId(5), card_of(old_gone, old_gone.name))
    assert outcome(third, approved(third, 0, (back,))) == []


def test_the_keys_of_one_close_are_remembered_in_the_order_of_the_operations() -> None:
    facts = federation(7)
    both = after(facts, (*replace_key(facts, 4), *replace_key(facts, 2)))

    assert both.membership.replaced_keys == (facts.members[4].key, facts.members[2].key)


def test_a_federation_replaces_a_bounded_number_of_keys() -> None:
    facts = federation(7)

    def with_former(count: int) -> Federation:
        keys = tuple(digest_of(b"key %d" % number) for number in range(count))
        return replace(facts, membership=replace(facts.membership, replaced_keys=keys))

    full, almost = with_former(REPLACED_KEYS_MAX), with_former(REPLACED_KEYS_MAX - 1)
    assert outcome(full, approved(full, 0, replace_key(full, 3))) == []
    assert outcome(full, approved(full, 0, add("eve"))) == [0]
    assert outcome(almost, approved(almost, 0, replace_key(almost, 3))) == [0]
    two = (*replace_key(almost, 3), *replace_key(almost, 2))
    assert outcome(almost, approved(almost, 0, two)) == []


def test_a_leave_needs_no_approval_unless_f_sinks() -> None:
    assert outcome(federation(8), pending(7, remove(7), 1)) == [7]
    assert outcome(federation(7), pending(6, remove(6), 1)) == []
    assert outcome(federation(7), approved(federation(7), 6, remove(6))) == [6]


def test_to_expel_another_or_to_ask_for_more_than_to_leave_needs_a_quorum() -> None:
    facts = federation(8)

    assert outcome(facts, pending(0, remove(7), facts.committee.quorum - 1)) == []
    assert outcome(facts, pending(7, (*remove(7), Rounds(Round(20))), 1)) == []
    assert outcome(facts, approved(facts, 0, remove(7))) == [0]


def test_approved_changes_come_before_leaves_and_otherwise_in_the_logs_order() -> None:
    """At most f = 1 goes: the thief's leave is older, the owner's new key is approved."""
    facts = federation(5)
    leave = pending(3, remove(3), 1)
    rescue = approved(facts, 0, replace_key(facts, 3))
    expulsion = approved(facts, 1, remove(4))

    assert outcome(facts, leave, rescue) == [0]
    assert outcome(facts, rescue, expulsion) == [0]
    assert outcome(facts, expulsion, rescue) == [1]


def test_after_the_first_change_none_lowers_f() -> None:
    """Each was approved by itself; nobody approved the sum."""
    eight = federation(8)
    assert outcome(eight, approved(eight, 6, remove(6)), approved(eight, 7, remove(7))) == [6]
    seven = federation(7)
    assert outcome(seven, approved(seven, 6, remove(6)), approved(seven, 5, remove(5))) == [6, 5]


def test_a_leave_does_not_undo_the_larger_f_that_the_first_change_brings() -> None:
    """Of seven two may lie. Those who let eve in did not agree to be six with her among them."""
    facts = federation(6)
    joins = approved(facts, 0, add("eve"))

    assert outcome(facts, joins, pending(5, remove(5), 1)) == [0]
    assert outcome(facts, pending(5, remove(5), 1)) == [5]


def test_a_change_is_taken_whole_or_not_at_all() -> None:
    """Of one's two additions only one machine is ready."""
    facts = federation(5)
    both = approved(facts, 0, add("eve", "mallory"))
    ready = (ReadyKey(digest_of(b"eve"), CLOSING),)

    assert chosen_changes(facts, CLOSING, (both,), ready) == []


@pytest.mark.parametrize(("rounds_ago", "counts"), [(0, True), (1, True), (2, False)])
def test_a_ready_counts_for_two_closes(rounds_ago: int, counts: bool) -> None:
    facts = federation(4)
    joins = approved(facts, 0, add("eve"))
    ready = (ReadyKey(digest_of(b"eve"), Round(CLOSING - rounds_ago)),)

    assert bool(chosen_changes(facts, CLOSING, (joins,), ready)) is counts


def test_the_last_round_is_a_boundary_only_if_a_later_end_is_agreed() -> None:
    facts = federation(5)
    last = Round(ROUNDS)
    leave = approved(facts, 0, remove(4))
    longer = approved(facts, 1, (Rounds(Round(ROUNDS + 3)),))

    assert next_membership(facts, last, (leave,), ()) is None
    both = next_membership(facts, last, (leave, longer), ())
    assert both is not None
    assert (both.rounds, both.first_round) == (ROUNDS + 3, ROUNDS + 1)
    assert not both.members[4].active


def test_the_next_epoch_names_its_origin_and_its_parent() -> None:
    first = federation(5)
    membership = next_membership(first, CLOSING, (approved(first, 0, remove(4)),), ())
    assert membership is not None
    second = Federation(first.charter, membership)
    third = next_membership(second, Round(6), (approved(second, 0, add("eve")),), (ready("eve"),))

    assert third is not None
    assert (third.epoch, third.origin, third.parent) == (2, first.chain, second.chain)
    assert NO_DIGEST not in (third.origin, third.parent)


def ready(text: str) -> ReadyKey:
    return ReadyKey(Digest(digest_of(text.encode())), Round(6))


# --- What the aggregation rule can compute -----------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_a_leave_never_leaves_a_rule_without_enough_updates(rule: str) -> None:
    """Every round would close, and none would ever have a model again."""
    for active in range(5, 14):
        facts = federation(active)
        facts = replace(facts, charter=replace(facts.charter, aggregation=rule))
        following = next_membership(facts, CLOSING, (pending(0, [Remove(NodeId(0))], 1),), ())
        if following is not None:
            assert computable(Federation(facts.charter, following)).holds


def test_krum_keeps_the_fifth_member() -> None:
    facts = federation(5)
    leave = (pending(0, [Remove(NodeId(0))], 5),)
    krum, tolerant = (
        replace(facts, charter=replace(facts.charter, aggregation="krum", faults_max=faults_max))
        for faults_max in (1, 0)
    )

    assert next_membership(krum, CLOSING, leave, ()) is None
    assert next_membership(tolerant, CLOSING, leave, ()) is not None
