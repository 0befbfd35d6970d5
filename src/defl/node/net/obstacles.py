"""What stands between this node and a peer that it dials, in one sentence that says what to do.

`defl node check` and a running node use the same words. Nothing here waits. Whoever is in between
chooses names and reasons: they are shown shortened and escaped.
"""

import errno
import socket
import ssl
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from defl.cards import Card
from defl.node.net.proxy import ProxyRefused
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.route import Route, RouteKind
from defl.node.setup.identity import certificate_names, certificate_validity, node_key_of
from defl.printable import printable

SUBJECT_CHARACTERS_MAX = 120
KEY_CHARACTERS = 16
# OpenSSL's codes for a trusted certificate at the wrong time (X509_V_ERR_CERT_NOT_YET_VALID and
# X509_V_ERR_CERT_HAS_EXPIRED); for any other certificate, trust fails first.
WRONG_TIME = (9, 10)
WITHOUT_RELAY = Refused(
    Refusal.NO_RELAY,
    "it only dials, as this node does, and no relay is named: found the federation with one, or "
    "let a member that can be dialled relay (relay = true in its node.toml, then defl node card)",
)

# The alert of a node that turns its caller away (acceptor.py), as OpenSSL names it.
NO_PLACE = "ALERT_INTERNAL_ERROR"


class CallStage(Enum):
    """How far a call had come when it failed."""

    CONNECTING = "connecting"
    SECURING = "securing"  # the TLS handshake
    GREETING = "greeting"


@dataclass(frozen=True, slots=True)
class Obstacle:
    error: OSError
    stage: CallStage
    route: Route
    shown: bytes | None  # the certificate that a second look saw
    now: datetime


def is_about_certificate(error: OSError, stage: CallStage) -> bool:
    """Whether a look at the certificate that is shown would explain the error. An inspecting proxy
    may not even know TLS 1.3, so that no certificate was verified."""
    if stage is not CallStage.SECURING or not isinstance(error, ssl.SSLError):
        return False
    return not _is_at_wrong_time(error) and not _is_crowded(error)


def dial_refusal(obstacle: Obstacle, card: Card) -> Refused:
    error = obstacle.error
    if isinstance(error, ProxyRefused):
        return Refused(error.kind, str(error))
    match obstacle.stage:
        case CallStage.CONNECTING:
            kind, text = _unconnected(error, card)
        case CallStage.SECURING:
            kind, text = _unsecured(obstacle, card)
        case CallStage.GREETING:
            kind, text = Refusal.UNKNOWN, _ungreeted(error)
    way = "" if obstacle.route.kind is RouteKind.DIRECT else f", {obstacle.route}"
    if kind is Refusal.CLOSED:
        return Refused(kind, f"nobody listens at {card.address}{way}; {text}")
    return Refused(kind, f"{card.address}{way}: {text}")


def _unconnected(error: OSError, card: Card) -> tuple[Refusal, str]:
    match error:
        case socket.gaierror():
            return Refusal.NAME, (
                "the name cannot be resolved; check the address and this machine's DNS, or name "
                "your site's proxy in node.toml"
            )
        case ConnectionRefusedError():
            return Refusal.CLOSED, "is it running, and its port open?"
        case TimeoutError():
            return Refusal.SILENT, (
                "no answer: the machine is off, or a firewall drops the connection; ask your "
                f"network team to allow TCP out to {card.address}, and {card.name}'s to allow it in"
            )
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM):
        return Refusal.UNREACHABLE, (
            f"{error.strerror}: there is no route, or a firewall rejects the connection; ask your "
            f"network team to allow TCP out to {card.address}"
        )
    return Refusal.UNREACHABLE, f"it cannot be reached: {error.strerror or error}"


def _unsecured(obstacle: Obstacle, card: Card) -> tuple[Refusal, str]:
    error = obstacle.error
    match error:
        case ssl.SSLError() if _is_at_wrong_time(error):
            return Refusal.CLOCK, _wrong_time(card, obstacle.now)
        case ssl.SSLError() if _is_crowded(error):
            return Refusal.CROWDED, (
                f"it turns callers away, since too many call it at once; this node dials again. If "
                f"it lasts, ask {card.name}: `crowded` in its status"
            )
        case ssl.SSLError() if obstacle.shown is not None:
            return _foreign_certificate(obstacle.shown, card)
        case ssl.SSLCertVerificationError():
            return Refusal.CERTIFICATE, (
                f"it shows a certificate that is not its card's ({error.verify_message})"
            )
        case ssl.SSLError():
            return Refusal.NOT_TLS, (
                f"another program answers, which does not speak TLS as a node does "
                f"({error.reason or error}); check the address"
            )
        case TimeoutError():
            slow = True
        case _:
            # asyncio ends a handshake that takes too long with a reset of its own.
            slow = "is taking longer than" in str(error)
    if slow:
        return Refusal.SLOW, (
            "it takes the connection, but does not answer to TLS in time: the node there may be "
            f"crowded or overloaded; ask {card.name} for its status. Otherwise another program "
            "listens there, or a firewall holds the connection back"
        )
    return Refusal.GONE, (
        "it takes the connection, but ends it before TLS is complete: the node there may be "
        f"crowded or stopping, and this node dials again. If it lasts, ask {card.name} whether its "
        f"status says `crowded`; if not, ask your network team who ends TLS to {card.address}"
    )


def _is_crowded(error: ssl.SSLError) -> bool:
    return NO_PLACE in str(error)


def _is_at_wrong_time(error: OSError) -> bool:
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in WRONG_TIME


def _wrong_time(card: Card, now: datetime) -> str:
    start, end = certificate_validity(card.certificate)
    if now < start:
        return (
            f"its certificate is valid from {start:%F %T}, but this machine's clock says "
            f"{now:%F %T} UTC: set the clock"
        )
    return (
        f"its certificate expired on {end:%F %T}, and this machine's clock says {now:%F %T} UTC: "
        f"set the clock, or ask {card.name} for a newer card"
    )


def _foreign_certificate(shown: bytes, card: Card) -> tuple[Refusal, str]:
    """Of somebody who is not the owner of the agreed certificate, or of its owner's next one."""
    key = node_key_of(shown)
    if key is None:
        subject, issuer = map(_shortened, certificate_names(shown))
        return Refusal.INTERCEPTED, (
            f'TLS is intercepted, or another program answers: the certificate is of "{subject}", '
            f'issued by "{issuer}"; ask your network team to exempt {card.address} from TLS '
            "inspection"
        )
    if key == card.key:
        return Refusal.CERTIFICATE, (
            f"it shows another certificate of the agreed key, not its card's; ask {card.name} for "
            "the newer card"
        )
    return Refusal.OTHER_KEY, (
        f"another node answers: its key is {key.hex()[:KEY_CHARACTERS]}..., but "
        f"{card.name}'s agreed key is {card.key.hex()[:KEY_CHARACTERS]}...; ask {card.name} which "
        "machine listens there"
    )


def _shortened(name: str) -> str:
    return printable(name[:SUBJECT_CHARACTERS_MAX])


def _ungreeted(error: OSError) -> str:
    """A TLS 1.3 server refuses its caller only now, and gives no reason."""
    if isinstance(error, TimeoutError):
        return "TLS works, but no hello came in time; is the node there overloaded?"
    return (
        "it refused us after the handshake: does it have the same federation.toml, our card and "
        "the right time?"
    )
