"""Store-acks: those that this node gave, at most one per author and round ever, and those that it
collects for its own update until they certify that the blob is available.

With q acks, the author's own included, at least f + 1 honest members hold the blob and have checked
it. Since no honest member acks twice, at most one blob per author and round can be certified. The
signer does not rely on its callers: `sign_ack` refuses a second blob and one that is not checked.
"""

from msgspec.structs import replace

from defl.committee import Federation
from defl.crypto import Signer
from defl.errors import SigningRefused
from defl.fields import bitmap_of
from defl.ids import NodeId, Round
from defl.messages import Manifest, Offer, StoreAck, Upd, ack_statement
from defl.output import Durable
from defl.pool.blob_index import BlobIndex

Slot = tuple[Round, NodeId]


class Certifier:
    def __init__(
        self,
        federation: Federation,
        me: NodeId,
        signer: Signer,
        durable: Durable,
        index: BlobIndex,
    ) -> None:
        self._chain = federation.chain
        self._epoch = federation.epoch
        self._committee = federation.committee
        self._me = me
        self._signer = signer
        self._index = index
        self._given: dict[Slot, StoreAck] = {(ack.round, ack.author): ack for ack in durable.acks}
        self._offered = {offer.round: offer.manifest.digest for offer in durable.offers}
        self._collected: dict[Round, dict[NodeId, StoreAck]] = {}
        self._certified: set[Round] = set()  # whose UPD this process has signed

    def __len__(self) -> int:
        return len(self._given)

    @property
    def given(self) -> tuple[StoreAck, ...]:
        return tuple(self._given.values())

    def given_for(self, round_: Round, author: NodeId) -> StoreAck | None:
        return self._given.get((round_, author))

    def collected_from(self, acker: NodeId) -> tuple[StoreAck, ...]:
        """This member's acks for this node's own updates."""
        return tuple(acks[acker] for acks in self._collected.values() if acker in acks)

    def may_offer(self, round_: Round, manifest: Manifest) -> bool:
        """Has this node never offered another blob for this round?"""
        return self._offered.get(round_, manifest.digest) == manifest.digest

    def sign_offer(self, round_: Round, manifest: Manifest) -> Offer:
        if not self.may_offer(round_, manifest):
            raise SigningRefused(f"this node has offered another blob for round {round_}")
        self._offered[round_] = manifest.digest
        unsigned = Offer(round_, self._me, manifest, b"")
        signature = self._signer.sign(unsigned.statement(self._chain, self._epoch))
        return replace(unsigned, signature=signature)

    def may_ack(self, offer: Offer) -> bool:
        """Has this node never acknowledged another blob of this author and round?"""
        given = self._given.get((offer.round, offer.author))
        return given is None or given.digest == offer.manifest.digest

    def acked(self, offer: Offer) -> StoreAck | None:
        given = self._given.get((offer.round, offer.author))
        return given if given is not None and given.digest == offer.manifest.digest else None

    def sign_ack(self, offer: Offer) -> StoreAck:
        if not self.may_ack(offer):
            raise SigningRefused(
                f"this node has acknowledged another blob of member {offer.author} for round "
                f"{offer.round}"
            )
        manifest = offer.manifest
        if not self._index.is_checked(manifest.digest):
            raise SigningRefused(
                f"this node has not checked the blob of member {offer.author} for round "
                f"{offer.round}"
            )
        message = ack_statement(
            self._chain,
            self._epoch,
            offer.round,
            offer.author,
            manifest.digest,
            manifest.base,
            manifest.size,
        )
        ack = StoreAck(
            offer.round,
            offer.author,
            manifest.digest,
            manifest.base,
            manifest.size,
            self._me,
            self._signer.sign(message),
        )
        self._given[offer.round, offer.author] = ack
        return ack

    def count(self, offer: Offer, ack: StoreAck) -> None:
        """Keep an ack of exactly the offered blob, one of each member."""
        manifest = offer.manifest
        if (ack.digest, ack.base, ack.size) == (manifest.digest, manifest.base, manifest.size):
            self._collected.setdefault(offer.round, {}).setdefault(ack.acker, ack)

    def certify(self, offer: Offer) -> Upd | None:
        """Sign the UPD, once, when q members have acknowledged the offered blob; else None."""
        if offer.round in self._certified or not self.is_certified(offer):
            return None
        self._certified.add(offer.round)
        manifest, acks = offer.manifest, self._collected[offer.round]
        ackers = sorted(acks)
        unsigned = Upd(
            round=offer.round,
            author=self._me,
            digest=manifest.digest,
            size=manifest.size,
            base=manifest.base,
            ackers=bitmap_of(ackers, self._committee.slots),
            acks=tuple(acks[acker].signature for acker in ackers),
            signature=b"",
        )
        signature = self._signer.sign(unsigned.statement(self._chain, self._epoch))
        return replace(unsigned, signature=signature)

    def has_ack(self, offer: Offer, member: NodeId) -> bool:
        return member in self._collected.get(offer.round, {})

    def is_certified(self, offer: Offer) -> bool:
        return len(self._collected.get(offer.round, {})) >= self._committee.quorum

    def forget(self, round_: Round) -> None:
        self._given = {slot: ack for slot, ack in self._given.items() if slot[0] > round_}
        self._offered = {r: digest for r, digest in self._offered.items() if r > round_}
        self._collected = {r: acks for r, acks in self._collected.items() if r > round_}
        self._certified = {r for r in self._certified if r > round_}
