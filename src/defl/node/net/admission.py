"""Connection admission: which connections are refused, with a reason that says what to do.

Nothing here waits or counts; the transport closes the connection and keeps the count.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from defl.cards import Card
from defl.ids import NO_DIGEST, Digest, NodeId
from defl.node.net.framing import PROTOCOL_VERSION, Hello, Lane, Link


class Refusal(StrEnum):
    """Why a connection or a frame was refused."""

    CROWDED = "crowded"  # evicted: too many were pending
    SLOW = "slow"  # no hello in time
    GONE = "gone"  # closed before its hello
    NOT_TLS = "not_tls"
    CERTIFICATE = "certificate"  # not a member's, or expired
    HELLO = "hello"  # not a hello
    VERSION = "version"
    FEDERATION = "federation"
    IDENTITY = "identity"  # claims to be another member
    DIRECTION = "direction"  # the higher id dialled
    FRAME = "frame"  # a length out of bounds
    FAULT = "fault"  # the handler raised a PeerFault for a frame
    UNREACHABLE = "unreachable"  # no answer at the card's address
    PROBE = "probe"  # a member's `defl node check`, which wants our hello and nothing else


@dataclass(frozen=True, slots=True)
class Refused:
    kind: Refusal
    text: str
    member: NodeId | None = None  # the owner of the certificate, if it is a member's


def check_hello(
    hello: Hello | None,
    *,
    certificate: bytes | None,
    dialled: tuple[NodeId, Lane] | None,
    me: NodeId,
    chain: Digest,
    cards: Mapping[NodeId, Card],
) -> Refused | None:
    """None if the peer is the expected member, in our federation and on the expected lane."""
    if hello is None:
        return Refused(Refusal.HELLO, "the first frame is not a hello: is it another program?")
    member = next((id_ for id_, card in cards.items() if card.certificate == certificate), None)
    if member is None or member == me:
        return Refused(Refusal.IDENTITY, "its certificate no longer belongs to another member")
    name = cards[member].name
    if hello.version != PROTOCOL_VERSION:
        return Refused(
            Refusal.VERSION,
            f"{name} speaks version {hello.version} of the protocol, we speak {PROTOCOL_VERSION}: "
            "install the same release",
            member,
        )
    if hello.chain == NO_DIGEST:
        return Refused(Refusal.PROBE, f"{name} probes this node", member)
    if hello.chain != chain:
        theirs, ours = hello.chain.hex()[:16], chain.hex()[:16]
        return Refused(
            Refusal.FEDERATION,
            f"{name} is of another federation ({theirs}, ours is {ours}): compare federation.toml",
            member,
        )
    if hello.node != member:
        text = f"{name} is member {member} and claims to be member {hello.node}"
        return Refused(Refusal.IDENTITY, text, member)
    if dialled is None and member > me:
        return Refused(Refusal.DIRECTION, f"{name} dialled us, but has the higher id", member)
    if dialled is not None and dialled != (member, hello.lane):
        text = f"{name} answered on lane {hello.lane}, not on the one that was dialled"
        return Refused(Refusal.IDENTITY, text, member)
    return None


def refusal_of(error: OSError | TimeoutError, link: Link | None) -> Refused:
    """Why an accepted connection failed; it has no link before its first record."""
    match error:
        case _ if link is not None and link.broken is not None:
            return Refused(Refusal.HELLO, link.broken)
        case ssl.SSLCertVerificationError():
            return Refused(Refusal.CERTIFICATE, error.verify_message)
        case ssl.SSLError(reason="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            return Refused(Refusal.CERTIFICATE, "no certificate")
        case ssl.SSLError():
            return Refused(Refusal.NOT_TLS, str(error))
        case TimeoutError():
            return Refused(Refusal.SLOW, "no hello in time")
        case _:
            # asyncio ends a handshake that takes too long with a reset of its own.
            slow = "is taking longer than" in str(error)
            return Refused(Refusal.SLOW if slow else Refusal.GONE, str(error))


def dial_refusal_of(error: OSError | TimeoutError, link: Link, card: Card) -> Refused:
    refused = refusal_of(error, link)
    peer = f"{card.name} at {card.address}"
    if refused.kind is Refusal.CERTIFICATE:
        text = f"{peer} shows a certificate that expired or is not its card's: {refused.text}"
        return Refused(refused.kind, text)
    if link.certificate is not None:
        text = f"{peer} refused us after the handshake: does it have our card and federation.toml?"
        return Refused(refused.kind, f"{text} ({error})" if str(error) else text)
    if isinstance(error, ssl.SSLError):
        return Refused(refused.kind, f"{peer} does not speak TLS 1.3 as a node does: {error}")
    return Refused(Refusal.UNREACHABLE, f"{peer} cannot be reached: {error or 'no answer in time'}")
