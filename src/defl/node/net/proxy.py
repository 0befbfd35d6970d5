"""HTTP CONNECT: which proxy leads to an address, the request for a tunnel, and its answer.

Pure functions on text and bytes; connecting.py has the sockets. The proxy is a stranger: its answer
is bounded, and its words are shown shortened and escaped. A password is never shown.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import unquote

from defl.errors import UserError
from defl.node.net.refusal import Refusal
from defl.node.setup.identity import split_address
from defl.printable import printable

# Real ones have a few hundred bytes; a refusal comes with an HTML page, which is not read.
PROXY_ANSWER_BYTES_MAX = 16 * 2**10
WITHOUT_PROXY = "none"
STATUS_CHARACTERS_MAX = 80
# Of the ways to prove who asks; a proxy offers one to three.
OFFERS_MAX = 4

MEMBER_ADVICE = (
    "is that node running, does the proxy know its name, and does a firewall let the proxy out to "
    "this port?"
)
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: ([^\r\n]*))?")
_PREFIX = b"HTTP/1."
_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Proxy:
    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.user}@{self.address}" if self.user else self.address


class ProxyRefused(OSError):
    """No tunnel through the proxy; one sentence that says what to do."""

    def __init__(self, kind: Refusal, text: str) -> None:
        super().__init__(text)
        self.kind = kind


# --- Which proxy ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxy that leads out of this site, and the addresses that are reached without it."""

    proxy: Proxy | None = None
    exceptions: tuple[str, ...] = ()
    is_local_direct: bool = False  # loopback addresses are reached without it

    def of(self, address: str) -> Proxy | None:
        host, port = split_address(address)
        host = host.lower().rstrip(".")
        if self.is_local_direct and _is_loopback(host):
            return None
        if any(_matches(exception, host, port) for exception in self.exceptions):
            return None
        return self.proxy


def proxies_of(setting: str, environ: Mapping[str, str]) -> Proxies:
    """From `proxy` in node.toml, which holds for every address; if that is empty, from the
    environment."""
    if setting == WITHOUT_PROXY:
        return Proxies()
    if setting:
        return Proxies(parse_proxy(setting, "proxy"))
    # Lower case first, as curl and Python do.
    name = "https_proxy" if environ.get("https_proxy") else "HTTPS_PROXY"
    value = environ.get(name, "").strip()
    if not value:
        return Proxies()
    listed = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    exceptions = tuple(entry for entry in re.split(r"[,\s]+", listed.lower()) if entry)
    return Proxies(parse_proxy(value, name), exceptions, is_local_direct=True)


def parse_proxy(text: str, source: str) -> Proxy:
    """Of "http://user:password@host:port". Errors name the source and never show the text."""
    scheme, mark, rest = text.partition("://")
    if not mark:
        scheme, rest = "http", text
    if scheme.lower() != "http":
        raise UserError(
            f"{source}: only proxies that are themselves reached by plain http:// are supported, "
            f'not {printable(scheme[:20])}://; write http://host:port, or proxy = "none" in '
            "node.toml to connect without one"
        )
    credentials, _, place = rest.rpartition("@")
    user, _, password = credentials.partition(":")
    try:
        host, port = split_address(place.removesuffix("/"))
    except UserError:
        # Its text shows what it was given, which may be part of a password.
        raise UserError(
            f"{source}: not a proxy: write http://host:port or http://user:password@host:port, "
            "with special characters of the password as %XX"
        ) from None
    user, password = unquote(user), unquote(password)
    if ":" in user:
        raise UserError(f"{source}: a proxy's user name cannot have a colon")
    if not _is_text(user + password):  # an environment may hold any bytes
        raise UserError(f"{source}: user and password are not UTF-8; write other bytes as %XX")
    return Proxy(host.lower(), port, user, password)


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_loopback(host: str) -> bool:
    number = _number(host)
    if number is not None:
        return number.is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _matches(exception: str, host: str, port: int) -> bool:
    """An entry of NO_PROXY: "*", a host and the names below it, an IP address or a network; each
    may be for one port only."""
    if exception == "*":
        return True
    name, colon, only = exception.rpartition(":")
    if colon and only.isascii() and only.isdigit() and (":" not in name or name.endswith("]")):
        if int(only) != port:
            return False
    else:
        name = exception
    name = name.removeprefix("[").removesuffix("]")
    if (number := _number(host)) is not None:
        try:
            return number in ip_network(name, strict=False)
        except ValueError:
            return False
    name = name.removeprefix("*").strip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _number(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


# --- The request and its answer ------------------------------------------------------------------


def connect_request(address: str, proxy: Proxy) -> bytes:
    """The proxy resolves the name: sites behind one often know no outside names."""
    split_address(address)  # nothing in it ends a line
    lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if proxy.user or proxy.password:
        secret = base64.b64encode(f"{proxy.user}:{proxy.password}".encode())
        lines.append(f"Proxy-Authorization: Basic {secret.decode('ascii')}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def tunnel_is_open(answer: bytes, address: str, proxy: Proxy) -> bool:
    """Judges the bytes that have come so far: False while the answer is incomplete; raises
    ProxyRefused if it is not that of an open tunnel."""
    if answer[: len(_PREFIX)] != _PREFIX[: len(answer)]:
        raise _not_a_proxy(proxy, "it does not answer with HTTP")
    end = answer.find(_END)
    if end < 0:
        if len(answer) >= PROXY_ANSWER_BYTES_MAX:
            raise _not_a_proxy(
                proxy, f"its answer does not end within {PROXY_ANSWER_BYTES_MAX} bytes"
            )
        return False
    status, *headers = answer[:end].split(b"\r\n")
    parsed = _STATUS_LINE.fullmatch(status)
    if parsed is None:
        raise _not_a_proxy(proxy, "it does not answer with HTTP")
    code = int(parsed[1])
    if not 200 <= code < 300:
        raise _refusal(code, f"{code} {_shown(parsed[2] or b'')}".strip(), headers, address, proxy)
    if len(answer) > end + len(_END):
        # A TLS server speaks second: these bytes are not the peer's.
        raise _not_a_proxy(proxy, "it sent bytes of its own into the tunnel")
    return True


def _refusal(
    code: int, status: str, headers: list[bytes], address: str, proxy: Proxy
) -> ProxyRefused:
    at = f"the proxy {proxy}"
    if code in (407, 401):  # tinyproxy's answer to a wrong password
        return ProxyRefused(Refusal.PROXY_LOGIN, _password_advice(status, headers, proxy))
    if code >= 500:  # 502 to 504; tinyproxy says 500
        return ProxyRefused(
            Refusal.PROXY_NO_WAY,
            f"{at} cannot reach {address} ({status}); {MEMBER_ADVICE}",
        )
    port = split_address(address)[1]
    usual = "" if port == 443 else "; many proxies allow port 443 only"
    return ProxyRefused(
        Refusal.PROXY_FORBIDS,
        f"{at} forbids CONNECT to {address} ({status}): ask your network team to allow it{usual}",
    )


def _password_advice(status: str, headers: list[bytes], proxy: Proxy) -> str:
    at = f"the proxy {proxy}"
    offers = _offers(headers)
    if offers and "basic" not in (offer.lower() for offer in offers):
        return (
            f"{at} accepts {', '.join(offers)} only ({status}), but a node can log in with Basic "
            "only: ask your network team for Basic, or to let this machine through without"
        )
    if proxy.user or proxy.password:
        return (
            f"{at} refuses this user's password ({status}): correct it in node.toml or the "
            "environment"
        )
    return (
        f"{at} asks for a user and password ({status}): write "
        "http://user:password@host:port into node.toml or the environment"
    )


def _offers(headers: list[bytes]) -> list[str]:
    """The ways to log in that the proxy names."""
    offers = []
    for line in headers:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"proxy-authenticate" and (words := value.split()):
            offers.append(_shown(words[0])[:20])
    return offers[:OFFERS_MAX]


def _not_a_proxy(proxy: Proxy, why: str) -> ProxyRefused:
    return ProxyRefused(
        Refusal.NOT_A_PROXY, f"{proxy} is not an HTTP proxy ({why}): check the proxy's port"
    )


def _shown(words: bytes) -> str:
    return printable(words[:STATUS_CHARACTERS_MAX].decode("latin-1"))
