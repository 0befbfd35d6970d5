"""The reasons for which there is no connection, or no answer to a frame."""

from dataclasses import dataclass
from enum import StrEnum

from defl.ids import NodeId


class Refusal(StrEnum):
    """Why a connection or a frame was refused; `kind` in `defl node check --json`."""

    CROWDED = "crowded"  # no place: too many were pending, here or at the node that we dial
    SLOW = "slow"  # no hello in time
    GONE = "gone"  # closed before its hello
    NOT_TLS = "not_tls"
    RECORDS = "records"  # TLS records that bring nothing (tls_transport.py)
    CERTIFICATE = "certificate"  # not a contact's, or expired
    HELLO = "hello"  # not a hello
    VERSION = "version"
    FEDERATION = "federation"
    IDENTITY = "identity"  # claims another key than its certificate's
    SECOND = "second"  # another process with its key has its place
    DIRECTION = "direction"  # we dial this peer, and are connected
    FRAME = "frame"  # a length out of bounds
    FAULT = "fault"  # the handler raised a PeerFault for a frame
    # Of connections that we dial:
    NAME = "name"  # the name cannot be resolved
    CLOSED = "closed"  # nothing listens there
    SILENT = "silent"  # no answer: a firewall drops our packets, or the machine is off
    UNREACHABLE = "unreachable"  # any other fault of the network
    NO_RELAY = "no_relay"  # both only dial, and there is no relay
    PROXY_DOWN = "proxy_down"  # the proxy cannot be reached
    PROXY_LOGIN = "proxy_login"  # the proxy wants a password, or another one
    PROXY_FORBIDS = "proxy_forbids"
    PROXY_NO_WAY = "proxy_no_way"  # the proxy cannot reach the peer
    NOT_A_PROXY = "not_a_proxy"
    INTERCEPTED = "intercepted"  # the certificate is no node's: TLS inspection, or a web server
    OTHER_KEY = "other_key"  # a node's, but not of the agreed key
    CLOCK = "clock"  # the agreed certificate, or ours, is not valid at this time
    UNKNOWN = "unknown"  # the node that we dialled ended the connection before its hello
    ELSEWHERE = "elsewhere"  # a process with our own key has our place there
    PROBE = "probe"  # a member's `defl node check`, which wants our hello and nothing else


@dataclass(frozen=True, slots=True)
class Refused:
    kind: Refusal
    text: str
    peer: NodeId | None = None  # the contact that owns the certificate
