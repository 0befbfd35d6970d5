"""HTTP CONNECT without sockets: which proxy, the request, and every answer that can come."""

import base64
import random

import pytest

from defl.errors import UserError
from defl.node.net.proxy import (
    PROXY_ANSWER_BYTES_MAX,
    WITHOUT_PROXY,
    Proxies,
    Proxy,
    ProxyRefused,
    connect_request,
    parse_proxy,
    proxies_of,
    tunnel_is_open,
)
from defl.node.net.refusal import Refusal

PROXY = Proxy("proxy.site", 3128)
MEMBER = "bob.example.org:7400"
OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"


def excepting(*entries: str) -> Proxies:
    return proxies_of("", {"HTTPS_PROXY": "http://proxy.site:3128", "NO_PROXY": ",".join(entries)})


# --- Which proxy ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "environ", "proxy"),
    [
        ("", {}, None),
        ("", {"HTTPS_PROXY": ""}, None),
        ("", {"HTTPS_PROXY": "http://a:1"}, "a:1"),
        ("", {"HTTPS_PROXY": "a:1"}, "a:1"),
        ("", {"HTTPS_PROXY": "http://a:1", "https_proxy": "http://b:2"}, "b:2"),
        ("", {"HTTPS_PROXY": "http://a:1", "https_proxy": ""}, "a:1"),
        ("", {"HTTP_PROXY": "http://a:1"}, None),
        ("http://c:3", {"HTTPS_PROXY": "http://a:1"}, "c:3"),
        ("http://c:3", {"NO_PROXY": "*"}, "c:3"),
        (WITHOUT_PROXY, {"HTTPS_PROXY": "http://a:1"}, None),
    ],
)
def test_node_toml_comes_before_the_environment(
    setting: str, environ: dict[str, str], proxy: str | None
) -> None:
    chosen = proxies_of(setting, environ).of(MEMBER)

    assert (chosen and str(chosen)) == proxy


@pytest.mark.parametrize(
    ("entry", "address", "is_direct"),
    [
        ("*", "bob.example.org:7400", True),
        ("bob.example.org", "bob.example.org:7400", True),
        ("BOB.example.ORG", "bob.EXAMPLE.org:7400", True),
        ("bob.example.org", "bob.example.org.:7400", True),
        ("example.org", "bob.example.org:7400", True),
        (".example.org", "bob.example.org:7400", True),
        ("*.example.org", "bob.example.org:7400", True),
        ("example.org", "badexample.org:7400", False),
        ("example.org", "example.org.evil.net:7400", False),
        ("bob", "bob.example.org:7400", False),
        ("bob.example.org:7400", "bob.example.org:7400", True),
        ("bob.example.org:443", "bob.example.org:7400", False),
        ("example.org:7400", "bob.example.org:7400", True),
        ("bob.example.org:port", "bob.example.org:7400", False),
        ("10.0.0.7", "10.0.0.7:7400", True),
        ("10.0.0.7", "10.0.0.70:7400", False),
        ("10.0.0.7:7400", "10.0.0.7:7400", True),
        ("10.0.0.7:443", "10.0.0.7:7400", False),
        ("10.0.0.0/8", "10.200.3.4:7400", True),
        ("10.1.2.3/8", "10.200.3.4:7400", True),
        ("10.0.0.0/8", "11.0.0.1:7400", False),
        ("10.0.0.0/8", "bob.example.org:7400", False),
        ("0.0.7", "10.0.0.7:7400", False),
        ("2001:db8::1", "[2001:db8::1]:7400", True),
        ("2001:db8::/32", "[2001:db8:1::9]:7400", True),
        ("[2001:db8::1]:7400", "[2001:db8::1]:7400", True),
        ("[2001:db8::1]:443", "[2001:db8::1]:7400", False),
        ("2001:db8::1", "[2001:db8::2]:7400", False),
        (".", "bob.example.org:7400", False),
        ("*.", "bob.example.org:7400", False),
        (":", "bob.example.org:7400", False),
        ("10.0.0.0/99", "10.0.0.1:7400", False),
    ],
)
def test_an_entry_of_no_proxy_names_hosts_domains_addresses_networks_or_all(
    entry: str, address: str, is_direct: bool
) -> None:
    assert (excepting(entry).of(address) is None) is is_direct
    assert (excepting("unrelated.net", entry).of(address) is None) is is_direct


def test_entries_are_separated_by_commas_or_spaces() -> None:
    proxies = excepting("a.org, b.org  c.org,,")

    assert [proxies.of(f"{host}.org:1") is None for host in "abcd"] == [True, True, True, False]


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "[::1]"])
def test_this_machine_itself_is_never_reached_through_the_environments_proxy(host: str) -> None:
    assert excepting().of(f"{host}:7400") is None
    assert proxies_of("http://proxy.site:3128", {}).of(f"{host}:7400") == PROXY


@pytest.mark.parametrize(
    ("text", "proxy"),
    [
        ("http://p:3128", Proxy("p", 3128)),
        ("HTTP://P.Site:3128/", Proxy("p.site", 3128)),
        ("http://[2001:db8::1]:3128", Proxy("2001:db8::1", 3128)),
        ("http://u:pw@p:1", Proxy("p", 1, "u", "pw")),
        ("http://u@p:1", Proxy("p", 1, "u")),
        ("http://dom%5Cu:p%40s%3As%25@p:1", Proxy("p", 1, "dom\\u", "p@s:s%")),
        ("http://u:p@s:s@p:1", Proxy("p", 1, "u", "p@s:s")),
        ("http://u:p/w@p:1", Proxy("p", 1, "u", "p/w")),
    ],
)
def test_a_proxy_is_written_as_in_a_url(text: str, proxy: Proxy) -> None:
    assert parse_proxy(text, "proxy") == proxy


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://u:secret@p:1", "not https://; write http://host:port"),
        ("socks5://u:secret@p:1", 'proxy = "none"'),
        ("http://u:secret@p", "write http://host:port"),
        ("http://u:secret", "write http://host:port"),
        ("http://u:secret@p:1/path", "write http://host:port"),
        ("http://u:secret@p:0", "write http://host:port"),
        ("http://u:secret@", "write http://host:port"),
        ("http://u%3Ax:secret@p:1", "cannot have a colon"),
        ("http://u:secret\udcff@p:1", "not UTF-8"),
    ],
)
def test_what_is_no_proxy_is_refused_without_showing_the_password(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=r"^HTTPS_PROXY: ") as refused:
        proxies_of("", {"HTTPS_PROXY": text})

    assert reason in str(refused.value)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_password_is_shown_nowhere() -> None:
    proxy = Proxy("p", 1, "alice", "secret")

    for shown in (str(proxy), repr(proxy), repr(Proxies(proxy))):
        assert "alice" in shown
        assert "secret" not in shown


# --- The request ---------------------------------------------------------------------------------


def test_the_request_names_the_member_and_proves_who_asks() -> None:
    assert connect_request(MEMBER, PROXY) == (
        b"CONNECT bob.example.org:7400 HTTP/1.1\r\nHost: bob.example.org:7400\r\n\r\n"
    )
    secret = base64.b64encode("alice:p@ß\r\n".encode())
    assert connect_request("[2001:db8::1]:7400", Proxy("p", 1, "alice", "p@ß\r\n")) == (
        b"CONNECT [2001:db8::1]:7400 HTTP/1.1\r\nHost: [2001:db8::1]:7400\r\n"
        b"Proxy-Authorization: Basic " + secret + b"\r\n\r\n"
    )


@pytest.mark.parametrize("address", ["bob\r\nX: y:1", "bob:1\r\n", "bob :1", "bob"])
def test_an_address_cannot_smuggle_lines_into_the_request(address: str) -> None:
    with pytest.raises(UserError):
        connect_request(address, PROXY)


# --- The answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        OPEN,
        b"HTTP/1.0 200 Connection established\r\nProxy-agent: tinyproxy/1.11.1\r\n\r\n",
        b"HTTP/1.1 200\r\n\r\n",
        b"HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 299 Odd\r\n\r\n",
    ],
)
def test_a_tunnel_is_open_when_the_head_of_a_2xx_answer_is_complete(answer: bytes) -> None:
    for end in range(len(answer)):
        assert not tunnel_is_open(answer[:end], MEMBER, PROXY)
    assert tunnel_is_open(answer, MEMBER, PROXY)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"HTTP/1.1 403 Forbidden", Refusal.PROXY_FORBIDS, "forbids CONNECT to bob.example.org"),
        (b"HTTP/1.1 403 Forbidden", Refusal.PROXY_FORBIDS, "many proxies allow port 443 only"),
        (b"HTTP/1.1 405 No", Refusal.PROXY_FORBIDS, "(405 No)"),
        (b"HTTP/1.1 302 Found", Refusal.PROXY_FORBIDS, "(302 Found)"),
        (b"HTTP/1.1 100 Continue", Refusal.PROXY_FORBIDS, "(100 Continue)"),
        (b"HTTP/1.1 502 Bad Gateway", Refusal.PROXY_NO_WAY, "cannot reach bob.example.org:7400"),
        (b"HTTP/1.1 500 Unable to connect", Refusal.PROXY_NO_WAY, "(500 Unable to connect)"),
        (b"HTTP/1.1 503 Away", Refusal.PROXY_NO_WAY, "(503 Away)"),
        (b"HTTP/1.1 504 Late", Refusal.PROXY_NO_WAY, "(504 Late)"),
        (b"HTTP/1.1 407 Auth", Refusal.PROXY_LOGIN, "asks for a user and password (407 Auth)"),
        (b"HTTP/1.1 401 No", Refusal.PROXY_LOGIN, "asks for a user and password (401 No)"),
        (b"HTTP/1.1 2000 OK", Refusal.NOT_A_PROXY, "does not answer with HTTP"),
        (b"HTTP/1.1 20 OK", Refusal.NOT_A_PROXY, "does not answer with HTTP"),
        (b"HTTP/1.1 +200 OK", Refusal.NOT_A_PROXY, "does not answer with HTTP"),
        (b"HTTP/1.9 200 OK", Refusal.NOT_A_PROXY, "does not answer with HTTP"),
    ],
)
def test_a_refusal_says_in_one_sentence_what_to_do(
    answer: bytes, kind: Refusal, words: str
) -> None:
    with pytest.raises(ProxyRefused) as refused:
        tunnel_is_open(answer + b"\r\nServer: x\r\n\r\n<html>page</html>", MEMBER, PROXY)

    assert refused.value.kind is kind
    assert words in str(refused.value)
    assert "proxy.site:3128" in str(refused.value)


def test_port_443_is_not_advised_to_whoever_uses_it() -> None:
    with pytest.raises(ProxyRefused) as refused:
        tunnel_is_open(b"HTTP/1.1 403 Forbidden\r\n\r\n", "bob.example.org:443", PROXY)

    assert "443 only" not in str(refused.value)


@pytest.mark.parametrize(
    ("proxy", "offers", "words"),
    [
        (PROXY, b"Basic realm=x", "asks for a user and password"),
        (Proxy("p", 1, "alice", "secret"), b"basic", "refuses this user's password"),
        (Proxy("p", 1, "alice", "secret"), b"", "refuses this user's password"),
        (PROXY, b"Negotiate\r\nproxy-authenticate: NTLM", "accepts Negotiate, NTLM only"),
        (PROXY, b"Negotiate\r\nProxy-Authenticate: Basic", "asks for a user and password"),
    ],
)
def test_a_proxy_that_wants_a_login_is_told_apart_by_what_it_accepts(
    proxy: Proxy, offers: bytes, words: str
) -> None:
    answer = b"HTTP/1.1 407 Auth\r\nProxy-Authenticate: " + offers + b"\r\n\r\n"
    with pytest.raises(ProxyRefused) as refused:
        tunnel_is_open(answer, MEMBER, proxy)

    assert refused.value.kind is Refusal.PROXY_LOGIN
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("garbage", [b"SSH-2.0-OpenSSH", b"\x16\x03\x01", b"\n", b"HTTP/2 200"])
def test_another_program_is_known_by_its_first_bytes(garbage: bytes) -> None:
    with pytest.raises(ProxyRefused, match="is not an HTTP proxy") as refused:
        tunnel_is_open(garbage, MEMBER, PROXY)

    assert refused.value.kind is Refusal.NOT_A_PROXY


def test_bytes_in_the_tunnel_before_the_member_could_speak_are_a_fault() -> None:
    with pytest.raises(ProxyRefused, match="bytes of its own into the tunnel"):
        tunnel_is_open(OPEN + b"\x16", MEMBER, PROXY)


def test_a_head_that_does_not_end_is_refused_at_the_bound() -> None:
    head = b"HTTP/1.1 200 OK\r\n"
    endless = head + b"X" * (PROXY_ANSWER_BYTES_MAX - len(head))
    assert not tunnel_is_open(endless[:-1], MEMBER, PROXY)

    with pytest.raises(ProxyRefused, match="does not end within 16384 bytes"):
        tunnel_is_open(endless, MEMBER, PROXY)


def test_a_proxys_words_are_shown_escaped_and_shortened() -> None:
    with pytest.raises(ProxyRefused) as refused:
        tunnel_is_open(b"HTTP/1.1 403 \x1b[2J\xff" + b"x" * 9000 + b"\r\n\r\n", MEMBER, PROXY)

    assert str(refused.value).isprintable()
    assert "\\x1b[2J" in str(refused.value)
    assert len(str(refused.value)) < 400


def test_any_bytes_are_an_open_tunnel_an_incomplete_answer_or_a_printable_refusal() -> None:
    rng = random.Random(16)  # noqa: S311
    words = [b"HTTP/1.1 ", b"HTTP/1.0 ", b"200", b"407", b"403", b" ", b"\r\n", b"\r\n\r\n", b":"]
    words += [b"Proxy-Authenticate", b"Basic", b"\x00", b"\xff\xfe", b"\n", b"9" * 40, b"OK"]
    outcomes = set()
    for _ in range(100_000):
        answer = b"".join(rng.choices(words, k=rng.randrange(8)))
        if rng.random() < 0.7:
            answer = b"HTTP/1.1 " + answer
        outcome: str | None = None
        try:
            is_open = tunnel_is_open(answer, MEMBER, PROXY)
        except ProxyRefused as refused:
            outcome, text = refused.kind, str(refused)
        if outcome is None:
            outcome = "open" if is_open else "incomplete"
            assert is_open == (answer[9:10] == b"2" and answer.endswith(b"\r\n\r\n"))
        else:
            assert text.isprintable()
        outcomes.add(outcome)

    refusals = {Refusal.PROXY_LOGIN, Refusal.PROXY_FORBIDS, Refusal.NOT_A_PROXY}
    assert outcomes == {"open", "incomplete", *refusals}
