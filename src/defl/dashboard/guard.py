"""Who may read the dashboard, and what every answer forbids the browser.

`Guard.judge` decides from a request's head alone. `Guarded` is the outermost layer of the app: it
obeys, and puts SECURITY_HEADERS on every answer, errors included.

What it defends against: web pages that the operator visits (DNS rebinding: Host; requests from
other sites: the cookie's SameSite and Sec-Fetch-Site), other users of this machine (the token), and
text from peers that would become script (the content security policy).
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from hmac import compare_digest
from html import escape
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "token"  # noqa: S105 - the name of the parameter
METHODS = ("GET", "HEAD")
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# Unless the answer has its own.
DEFAULT_HEADERS = {"Cache-Control": "no-store"}
NOT_ADMITTED = "Open the address that `defl dashboard` printed when it started: it has the token.\n"
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
HTTP_PORT = 80
# Address and headers of a request. A browser's have about 1,000 bytes. h11 has the same bound for
# heads that arrive in pieces.
HEAD_BYTES_MAX = 16 * 2**10
# Only these are data: a script of another site must not even make the server work for it.
DATA = ("/api/", "/files/")
# In a request's scope, once its token or cookie is right: its connection is the operator's.
ADMITTED = "defl.admitted"
OWN_REQUESTS = ("same-origin", "none")  # none: typed or opened by the user


@dataclass(frozen=True, slots=True)
class Head:
    """The parts of a request that are judged. Names of headers are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]

    @property
    def size(self) -> int:
        fields = sum(len(name) + len(value) for name, value in self.headers.items())
        return len(self.path) + len(self.query) + fields


@dataclass(frozen=True, slots=True)
class Admit:
    pass


@dataclass(frozen=True, slots=True)
class Enter:
    """The token is right: the browser gets the cookie, and an address without the token.

    `by_page`: a link on another site or in a file led here. The cookie is Strict, so the browser
    would not send it after a redirect; it does after a page of ours that leads on.
    """

    location: str
    by_page: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    status: int
    sentence: str


class Guard:
    """`host` and `port`: where the dashboard listens."""

    def __init__(self, host: str, port: int, token: str) -> None:
        # Cookies are sent to every port of a host: each dashboard needs a name of its own.
        self.cookie = f"defl-dashboard-{port}"
        self.token = token
        self._hosts = hosts_of(host, port)

    def judge(self, head: Head) -> Admit | Enter | Refuse:
        if head.size > HEAD_BYTES_MAX:
            return Refuse(431, "The request is too long.\n")
        if head.headers.get("host", "").lower() not in self._hosts:
            return Refuse(403, "This is not the address that the dashboard listens on.\n")
        if head.method not in METHODS:
            return Refuse(405, "The dashboard only shows: GET and HEAD.\n")
        if head.path.startswith(DATA):
            if head.headers.get("sec-fetch-site", "none") not in OWN_REQUESTS:
                return Refuse(403, "Another site may not read the dashboard.\n")
        elif (given := _parameter(head.query, TOKEN)) is not None:
            if not self._is_right(given):
                return Refuse(401, f"The token is wrong or of an earlier start. {NOT_ADMITTED}")
            came_from = head.headers.get("sec-fetch-site", "none")
            return Enter(_without_token(head), by_page=came_from not in OWN_REQUESTS)
        if not any(self._is_right(value) for value in _cookies(head, self.cookie)):
            return Refuse(401, NOT_ADMITTED)
        return Admit()

    def _is_right(self, given: str) -> bool:
        return compare_digest(given.encode(errors="replace"), self.token.encode())


class Guarded:
    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # uvicorn is configured to offer nothing else

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                for name, value in DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        app = self._app
        verdict = self._guard.judge(_head(scope))
        scope[ADMITTED] = not isinstance(verdict, Refuse)
        match verdict:
            case Refuse(status=status, sentence=sentence):
                allow = {"Allow": ", ".join(METHODS)} if status == 405 else None
                app = PlainTextResponse(sentence, status, allow)
            case Enter(location=location, by_page=by_page):
                app = _leading_page(location) if by_page else RedirectResponse(location, 303)
                app.set_cookie(
                    self._guard.cookie, self._guard.token, httponly=True, samesite="strict"
                )
        await app(scope, receive, send_secured)


def _leading_page(location: str) -> HTMLResponse:
    refresh = f'<meta http-equiv="refresh" content="0; url={escape(location)}">'
    return HTMLResponse(f"<!doctype html><title>DeFL</title>{refresh}\n")


def hosts_of(host: str, port: int) -> frozenset[str]:
    """What a browser sends as Host when it asks this address."""
    name = bracketed(host).lower()
    names = LOOPBACK_NAMES | {name} if is_loopback(host) else {name}
    bare = names if port == HTTP_PORT else ()
    return frozenset({*(f"{each}:{port}" for each in names), *bare})


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _head(scope: Scope) -> Head:
    headers: dict[str, str] = {}
    for name, value in Headers(scope=scope).items():
        # Repeated cookies are one list; anything else that is repeated fits nothing.
        headers[name] = f"{headers[name]}; {value}" if name in headers else value
    return Head(scope["method"], scope["path"], scope["query_string"].decode("latin-1"), headers)


def _parameter(query: str, name: str) -> str | None:
    return next((value for key, value in parse_qsl(query, True) if key == name), None)


def _without_token(head: Head) -> str:
    rest = [(key, value) for key, value in parse_qsl(head.query, True) if key != TOKEN]
    # One slash: "//host" would lead to another host.
    path = quote("/" + head.path.lstrip("/"))
    return f"{path}?{urlencode(rest)}" if rest else path


def _cookies(head: Head, name: str) -> list[str]:
    """All of this name: another service of this host may have set one too."""
    pairs = (part.strip().partition("=") for part in head.headers.get("cookie", "").split(";"))
    return [value for key, _, value in pairs if key == name]
