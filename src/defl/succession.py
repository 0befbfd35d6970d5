"""Who the members of the next epoch are: the one answer that follows from what was proposed.

A function of agreed facts alone, evaluated when a round closes. A proposed change takes effect
whole or not at all. The limits keep the blobs of the closing round retrievable: of a blob's n - f
holders f may go at one boundary, and f of the next epoch may fail.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from defl.cards import Card
from defl.changes import Add, Operation, Remove, ReplaceKey, Rounds
from defl.committee import (
    MEMBERS_MIN,
    REPLACED_KEYS_MAX,
    Federation,
    Member,
    Membership,
    faults_of,
    has_use_for,
    member_of,
    updates_needed,
)
from defl.fields import MEMBERS_MAX
from defl.ids import Digest, NodeId, Round

# A READY counts for the close of the round that it names and for the next one.
READY_CLOSES = 2


class PendingChange(Struct, frozen=True, array_like=True):
    """A proposed change, and who has agreed to it."""

    round: Round  # of its CHANGE
    author: NodeId
    digest: Digest
    operations: tuple[Operation, ...]
    approvals: tuple[NodeId, ...]  # sorted
    withdrawn: tuple[NodeId, ...] = ()  # who withdrew its approval in the open round, sorted

    def approved_by(self, member: NodeId) -> "PendingChange":
        return replace(self, approvals=tuple(sorted({*self.approvals, member})))

    def withdrawn_by(self, member: NodeId) -> "PendingChange":
        approvals = tuple(other for other in self.approvals if other != member)
        withdrawn = tuple(sorted({*self.withdrawn, member}))
        return replace(self, approvals=approvals, withdrawn=withdrawn)

    @property
    def is_leave(self) -> bool:
        """The author removes itself and asks for nothing else."""
        return self.operations == (Remove(self.author),) and self.author in self.approvals


class ReadyKey(Struct, frozen=True, array_like=True):
    """The newest round in which a machine that is not a member yet said that it is up."""

    key: bytes
    round: Round


def wanted_keys(changes: Iterable[PendingChange]) -> frozenset[bytes]:
    """The keys that these changes would make members'."""
    cards = (card_in(operation) for change in changes for operation in change.operations)
    return frozenset(card.key for card in cards if card is not None)


def card_in(operation: Operation) -> Card | None:
    return operation.card if isinstance(operation, Add | ReplaceKey) else None


def next_membership(
    federation: Federation,
    closing: Round,
    changes: tuple[PendingChange, ...],
    ready: tuple[ReadyKey, ...],
) -> Membership | None:
    """The facts of the epoch after the one that closes this round; None: it goes on or ends."""
    chosen = chosen_changes(federation, closing, changes, ready)
    operations = [operation for change in chosen for operation in change.operations]
    if not operations:
        return None
    rounds = _rounds_after(federation, operations)
    if rounds <= closing:
        return None
    return Membership(
        epoch=federation.epoch + 1,
        origin=federation.origin,
        parent=federation.chain,
        first_round=closing + 1,
        rounds=rounds,
        members=_members_after(federation.members, operations),
        replaced_keys=(
            *federation.membership.replaced_keys,
            *_keys_replaced_by(federation, operations),
        ),
    )


def chosen_changes(
    federation: Federation,
    closing: Round,
    changes: tuple[PendingChange, ...],
    ready: tuple[ReadyKey, ...],
) -> list[PendingChange]:
    """Approved changes in the log's order, then leaves, as many as the limits allow together."""
    quorum = federation.committee.quorum
    approved = [change for change in changes if len(change.approvals) >= quorum]
    leaves = [change for change in changes if change.is_leave and change not in approved]
    present = {known.key for known in ready if closing - known.round < READY_CLOSES}
    chosen: list[PendingChange] = []
    faults = federation.committee.faults
    for change in (*approved, *leaves):
        together = [op for earlier in (*chosen, change) for op in earlier.operations]
        if not change.operations or refusal(federation, closing, together) is not None:
            continue
        if any(card.key not in present for op in change.operations if (card := card_in(op))):
            continue
        after = _faults_after(federation, together)
        # Nobody approved a lower f: neither of a leave, nor of the sum of several changes.
        if after < faults and (chosen or change not in approved):
            continue
        faults = after
        chosen.append(change)
    return chosen


def refusal(federation: Federation, closing: Round, operations: list[Operation]) -> str | None:
    """Why these operations can never take effect together at the close of this round, or None."""
    committee, members = federation.committee, federation.members
    touched = [_changed_member(op) for op in operations if _changed_member(op) is not None]
    if len(set(touched)) != len(touched):
        return "it has two operations for one member"
    if any(member >= committee.slots for member in touched if member is not None):
        return "it names a member that does not exist"
    if any(isinstance(op, Remove) and not committee.has(op.member) for op in operations):
        return "it removes a member that has left already"
    if sum(isinstance(op, Rounds) for op in operations) > 1:
        return "it sets the last round twice"
    names = [member.name for member in members]
    replaced_keys = federation.membership.replaced_keys
    keys = {member.key for member in members}.union(replaced_keys)
    added = [op for op in operations if isinstance(op, Add)]
    if len(members) + len(added) > MEMBERS_MAX:
        return f"a federation has at most {MEMBERS_MAX} members in all its epochs"
    weights = [member.weight for member in members] + [op.weight for op in added]
    if not has_use_for(weights, federation.aggregation):
        return f"{federation.aggregation} ignores weights: a new member needs that of the others"
    for op in operations:
        card = card_in(op)
        if card is None:
            continue
        if card.key in keys:
            return f"{card.name}'s key is or was a member's; a key is used once"
        keys.add(card.key)
        if isinstance(op, ReplaceKey):
            if card.name != names[op.member]:
                return f"the card says {card.name!r}, the member is {names[op.member]!r}"
        elif card.name in names:
            return (
                f"a member is or was named {card.name!r}; if this is its new machine, replace its "
                "key with this card, else the new site needs another name"
            )
        else:
            names.append(card.name)
    removed = sum(isinstance(op, Remove) for op in operations)
    replaced = sum(isinstance(op, ReplaceKey) for op in operations)
    after = len(_active_after(federation, operations))
    if after < MEMBERS_MIN:
        return f"{after} members would be left, at least {MEMBERS_MIN} are needed"
    needed = _updates_needed(federation, faults_of(after))
    if after - faults_of(after) < needed:
        return f"{federation.aggregation} cannot be computed with fewer than {needed} updates"
    if len(replaced_keys) + replaced > REPLACED_KEYS_MAX:
        return f"a federation replaces at most {REPLACED_KEYS_MAX} keys in all its epochs"
    if removed + replaced > committee.faults:
        return f"at most {committee.faults} members may leave or get another key at once"
    if len(added) + replaced > faults_of(after):
        return f"at most {faults_of(after)} keys may be new at once among {after} members"
    if _rounds_after(federation, operations) <= closing and _says_rounds(operations):
        return f"round {closing} is closed, so the last round must be later"
    return None


def _updates_needed(federation: Federation, faults: int) -> int:
    """For a rule that cannot be computed no round would ever have a model again."""
    charter = federation.charter
    return updates_needed(charter.aggregation, charter.updates_faults_max(faults))


def _says_rounds(operations: Iterable[Operation]) -> bool:
    return any(isinstance(op, Rounds) for op in operations)


def _changed_member(operation: Operation) -> NodeId | None:
    return operation.member if isinstance(operation, Remove | ReplaceKey) else None


def _keys_replaced_by(federation: Federation, operations: Iterable[Operation]) -> tuple[bytes, ...]:
    replaced = (op.member for op in operations if isinstance(op, ReplaceKey))
    return tuple(federation.members[member].key for member in replaced)


def _rounds_after(federation: Federation, operations: Iterable[Operation]) -> int:
    return next((op.rounds for op in operations if isinstance(op, Rounds)), federation.rounds)


def _faults_after(federation: Federation, operations: list[Operation]) -> int:
    return faults_of(len(_active_after(federation, operations)))


def _active_after(federation: Federation, operations: list[Operation]) -> list[Member]:
    return [member for member in _members_after(federation.members, operations) if member.active]


def _members_after(
    members: tuple[Member, ...], operations: Iterable[Operation]
) -> tuple[Member, ...]:
    after = list(members)
    for op in operations:
        match op:
            case Add(card=card, weight=weight):
                after.append(member_of(card, weight))
            case Remove(member=member):
                after[member] = replace(after[member], active=False)
            case ReplaceKey(member=member, card=card):
                after[member] = member_of(card, after[member].weight)
            case Rounds():
                pass
    return tuple(after)
