"""Connection admission: which connections are refused, with a reason that says what to do.

Nothing here waits or counts; the transport closes the connection and keeps the count.
"""

import ssl
from collections.abc import Mapping

from defl.cards import Card
from defl.ids import NO_DIGEST, Digest, NodeId
from defl.node.net.framing import Lane, Link
from defl.node.net.hello import PROTOCOL_VERSION, Hello
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.tls_transport import RecordFlood

NOT_A_HELLO = Refused(Refusal.HELLO, "the first frame is not a hello: is it another program?")


def check_hello(
    hello: Hello,
    *,
    certificate: bytes | None,
    dialled: tuple[NodeId, Lane] | None,
    origin: Digest,
    session: bytes,
    cards: Mapping[NodeId, Card],
) -> NodeId | Refused:
    """The number of the peer, if it is a contact in our federation, and the dialled one. Our own
    session is `session`."""
    peer = next((id_ for id_, card in cards.items() if card.certificate == certificate), None)
    if peer is None:
        return Refused(Refusal.IDENTITY, "its certificate no longer belongs to a contact")
    card = cards[peer]
    if (difference := _difference(hello, card.name, origin)) is not None:
        return Refused(*difference, peer)
    if hello.key != card.key:
        text = f"{card.name} shows its certificate, but claims another key"
        return Refused(Refusal.IDENTITY, text, peer)
    if dialled is not None and dialled != (peer, hello.lane):
        text = f"{card.name} answered on lane {hello.lane}, not on the one that was dialled"
        return Refused(Refusal.IDENTITY, text, peer)
    if hello.refused == session:
        return Refused(Refusal.ELSEWHERE, elsewhere(card.name), peer)
    return peer


def elsewhere(name: str) -> str:
    return (
        f"{name} is connected with another process that has this node's key, or was after this one "
        "had gone silent: stop the other one, then start this one again"
    )


def check_stranger(hello: Hello, origin: Digest) -> Refused | None:
    """None if a caller of the letterbox belongs here; nothing proves the key that it states."""
    if (difference := _difference(hello, "a caller of the letterbox", origin)) is not None:
        return Refused(*difference)
    if hello.lane is not Lane.CONTROL:
        return Refused(Refusal.HELLO, "a letterbox has only the control lane")
    return None


def _difference(hello: Hello, name: str, origin: Digest) -> tuple[Refusal, str] | None:
    if hello.version != PROTOCOL_VERSION:
        versions = f"version {hello.version} of the protocol, we speak {PROTOCOL_VERSION}"
        return Refusal.VERSION, f"{name} speaks {versions}: install the same release"
    if hello.origin == NO_DIGEST:
        return Refusal.PROBE, f"{name} probes this node"
    if hello.origin != origin:
        theirs, ours = hello.origin.hex()[:16], origin.hex()[:16]
        return (
            Refusal.FEDERATION,
            f"{name} is of another federation ({theirs}, ours is {ours}): compare federation.toml",
        )
    return None


def refusal_of(error: OSError | TimeoutError, link: Link | None) -> Refused:
    """Why an accepted connection failed; it has no link before its first record."""
    match error:
        case _ if link is not None and link.broken is not None:
            return Refused(Refusal.HELLO, link.broken)
        case RecordFlood():
            return Refused(Refusal.RECORDS, str(error))
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


def relayed_refusal_of(error: OSError | TimeoutError, link: Link, card: Card) -> Refused:
    refused = refusal_of(error, link)
    if refused.kind is Refusal.CERTIFICATE:
        text = f"somebody else than {card.name} answered {link.route}: {refused.text}"
        return Refused(refused.kind, text)
    text = f"{card.name} did not answer {link.route}: {refused.text or 'no answer in time'}"
    return Refused(refused.kind, text)
