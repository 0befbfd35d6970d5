"""Whom a node talks to, and as what: members, guests, former members, strangers."""

from msgspec.structs import replace

from defl.cards import Card
from defl.changes import Add, Operation, Remove, ReplaceKey, Rounds
from defl.committee import Federation, Member
from defl.contacts import (
    FORMER_FROM,
    FORMER_MAX,
    GUESTS_MAX,
    STRANGERS_FROM,
    Contacts,
    Former,
    PeerRole,
    former_after,
    id_of,
)
from defl.fields import MEMBERS_MAX
from defl.ids import OUTSIDER, Digest, NodeId, Round, digest_of
from defl.succession import PendingChange, ReadyKey, next_membership
from support.builders import Small, name, nodes

SMALL = Small(5, real=False, rounds=10)  # q = 4
FACTS = SMALL.federation
ME = NodeId(0)


def card(text: str) -> Card:
    return Card(text, digest_of(text.encode()), b"", "", 0, bytes(64))


def change(*operations: Operation, author: int = 0, approvals: int = 4) -> PendingChange:
    digest = Digest(name(f"{author} {operations}"))
    approved = nodes(*range(approvals))
    return PendingChange(Round(1), NodeId(author), digest, operations, approved)


def contacts(former: tuple[Former, ...] = (), me: NodeId = ME) -> Contacts:
    return Contacts(FACTS, me, former)


def after(facts: Federation, closing: int, *operations: Operation) -> Federation:
    changes = (change(*operations),)
    keys = [op.card.key for op in operations if isinstance(op, Add | ReplaceKey)]
    ready = tuple(ReadyKey(key, Round(closing)) for key in keys)
    membership = next_membership(facts, Round(closing), changes, ready)
    assert membership is not None
    return Federation(facts.charter, membership)


def test_members_have_their_ids_and_a_node_is_no_contact_of_its_own() -> None:
    one = contacts()

    assert set(one.all) == {1, 2, 3, 4}
    assert one.peer_of(FACTS.members[3].key) == 3
    assert one.key_of(NodeId(3)) == FACTS.members[3].key
    assert one.peer_of(FACTS.members[ME].key) is None
    assert one.role_of(NodeId(3)) is PeerRole.MEMBER
    assert contacts(me=OUTSIDER).knows(ME)


def test_a_machine_is_a_guest_once_its_change_is_approved_and_as_long_as_it_is_pending() -> None:
    one, joins = contacts(), Add(card("eve"))
    one.set_changes([change(joins, approvals=3)])
    assert one.peer_of(joins.card.key) is None
    assert one.version == 0

    one.set_changes([change(joins)])
    guest = one.peer_of(joins.card.key)
    assert guest == MEMBERS_MAX
    assert one.role_of(guest) is PeerRole.GUEST
    assert one.version == 1

    one.set_changes([])
    assert one.peer_of(joins.card.key) is None
    assert one.role_of(guest) is PeerRole.STRANGER


def test_a_replaced_keys_new_machine_is_a_guest_too() -> None:
    one = contacts()
    one.set_changes([change(ReplaceKey(NodeId(3), card("node-3")), Rounds(Round(9)))])

    assert one.guests == nodes(MEMBERS_MAX)


def test_a_guest_keeps_its_number_while_others_come_and_go() -> None:
    one = contacts()
    eve, mallory = change(Add(card("eve"))), change(Add(card("mallory")), author=1)
    one.set_changes([eve, mallory])
    number = one.peer_of(card("mallory").key)
    one.set_changes([mallory])
    assert one.peer_of(card("mallory").key) == number
    one.set_changes([mallory, eve])

    assert one.peer_of(card("mallory").key) == number
    assert one.peer_of(card("eve").key) not in (None, number)


def test_contacts_that_stay_the_same_are_not_connected_again() -> None:
    one = contacts()
    one.set_changes([change(Add(card("eve")))])
    one.set_changes([change(Add(card("eve"))), change(Remove(NodeId(4)), author=1)])

    assert one.version == 1


def test_there_are_at_most_sixteen_guests() -> None:
    one = contacts()
    cards = [card(f"guest {i}") for i in range(24)]
    changes = [change(*map(Add, cards[i : i + 8]), author=i // 8) for i in (0, 8, 16)]
    one.set_changes(changes)

    assert len(one.guests) == GUESTS_MAX
    assert max(one.guests) < FORMER_FROM
    assert one.peer_of(cards[GUESTS_MAX].key) is None
    one.set_changes(changes[1:])  # room for the others
    assert len(one.guests) == GUESTS_MAX
    assert len(set(one.all)) == len(one.all)


def test_who_leaves_or_has_its_key_replaced_is_a_former_member_up_to_its_last_round() -> None:
    following = after(FACTS, 3, ReplaceKey(NodeId(3), card("node-3")))
    former = former_after((), FACTS, following)
    one = Contacts(following, ME, former)

    assert former == (Former(FACTS.members[3], Round(3)),)
    assert one.role_of(NodeId(3)) is PeerRole.MEMBER
    assert one.key_of(NodeId(3)) == card("node-3").key
    thief = one.peer_of(FACTS.members[3].key)
    assert thief == FORMER_FROM
    assert one.role_of(thief) is PeerRole.FORMER
    assert one.last_round(thief) == 3
    assert one.last_round(NodeId(3)) is None


def test_former_members_stay_known_over_epochs_and_the_oldest_are_forgotten() -> None:
    second = after(FACTS, 3, Remove(NodeId(3)))
    former = former_after((), FACTS, second)
    third = after(second, 5, Add(card("eve")))
    assert former_after(former, second, third) == former
    fourth = after(third, 6, Remove(NodeId(4)))

    both = former_after(former, third, fourth)
    assert [(known.member.name, known.round) for known in both] == [("node-3", 3), ("node-4", 6)]
    many = tuple(
        Former(Member(f"{i}", digest_of(str(i).encode())), Round(1)) for i in range(FORMER_MAX)
    )
    newest = former_after(many, third, fourth)
    assert len(newest) == FORMER_MAX
    assert newest[-1].member.name == "node-4"
    assert many[0] not in newest


def test_only_those_that_left_with_the_last_epoch_are_asked_for_its_blobs() -> None:
    """Earlier leavers have gone, or have no blob of these rounds."""
    second = after(FACTS, 3, Remove(NodeId(3)))
    gone = former_after((), FACTS, second)
    third = after(second, 5, Add(card("eve")))
    fourth = after(third, 6, Remove(NodeId(4)))

    assert Contacts(second, ME, gone).leavers == (FORMER_FROM,)
    assert Contacts(third, ME, gone).leavers == ()
    both = former_after(gone, third, fourth)
    assert Contacts(fourth, ME, both).leavers == (FORMER_FROM + 1,)


def test_numbers_of_members_guests_former_members_and_strangers_do_not_meet() -> None:
    assert MEMBERS_MAX + GUESTS_MAX <= FORMER_FROM
    assert FORMER_FROM + FORMER_MAX < OUTSIDER < STRANGERS_FROM


def test_a_member_that_left_is_no_member_by_its_old_id() -> None:
    second = after(FACTS, 3, Remove(NodeId(3)))
    one = Contacts(second, ME, former_after((), FACTS, second))

    assert one.role_of(NodeId(3)) is PeerRole.STRANGER  # the number means nobody
    assert one.peer_of(FACTS.members[3].key) == FORMER_FROM
    assert id_of(second, FACTS.members[3].key) == OUTSIDER
    assert id_of(second, FACTS.members[4].key) == 4


def test_a_key_is_looked_up_as_a_member_before_anything_else() -> None:
    """A former member's key that an approved but impossible change names stays what it was."""
    member = FACTS.members[2]
    one = contacts((Former(member, Round(1)),))
    one.set_changes([change(Add(replace(card("again"), key=member.key)))])

    assert one.peer_of(member.key) == 2
