"""Who may read the dashboard, decided from the head of a request alone."""

import pytest

from defl.dashboard.guard import HEAD_BYTES_MAX, Admit, Enter, Guard, Head, Refuse, hosts_of

PORT = 8400
TOKEN = "the-token-of-this-start"  # noqa: S105 - of tests
NAMES = ["127.0.0.1:8400", "localhost:8400", "LocalHost:8400", "[::1]:8400"]
WRONG = ["token=wrong", "token=", f"token={TOKEN}x", f"token=x&token={TOKEN}"]
GUARD = Guard("127.0.0.1", PORT, TOKEN)
COOKIE = f"defl-dashboard-{PORT}={TOKEN}"


def head(path: str = "/", query: str = "", method: str = "GET", **headers: str) -> Head:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Head(method, path, query, {"host": "127.0.0.1:8400", "cookie": COOKIE, **named})


def status(request: Head, guard: Guard = GUARD) -> int:
    verdict = guard.judge(request)
    return verdict.status if isinstance(verdict, Refuse) else 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8400", "localhost:8400", "LocalHost:8400", "[::1]:8400"]
)
def test_every_name_of_loopback_with_the_right_port_is_served(host: str) -> None:
    assert GUARD.judge(head(host=host)) == Admit()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8400",  # its name now resolves to 127.0.0.1
        "127.0.0.1.evil.example:8400",
        "localhost:8401",
        "localhost",
        "127.0.0.1:8400; 127.0.0.1:8400",  # sent twice
        "",
    ],
)
def test_a_name_that_was_rebound_to_this_machine_is_refused_even_with_the_cookie(host: str) -> None:
    assert status(head(host=host)) == 403
    assert status(head(query=f"token={TOKEN}", host=host)) == 403


def test_at_another_address_only_that_address_is_served() -> None:
    guard = Guard("dash.example.org", 9000, TOKEN)
    cookie = f"defl-dashboard-9000={TOKEN}"

    assert status(head(host="dash.example.org:9000", cookie=cookie), guard) == 200
    assert status(head(host="localhost:9000", cookie=cookie), guard) == 403


def test_port_80_is_not_written_in_the_host_and_ipv6_has_brackets() -> None:
    assert "192.0.2.7" in hosts_of("192.0.2.7", 80)
    assert hosts_of("2001:db8::1", 9000) == {"[2001:db8::1]:9000"}
    assert "127.0.0.9:8400" in hosts_of("127.0.0.9", 8400)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get"])
def test_only_get_and_head_are_answered(method: str) -> None:
    assert status(head(method=method)) == 405
    assert status(head(method="HEAD")) == 200


@pytest.mark.parametrize("path", ["/", "/rounds", "/static/app.js", "/api/overview", "/files/a/b"])
def test_without_the_cookie_nothing_is_readable(path: str) -> None:
    verdict = GUARD.judge(head(path, cookie=""))

    assert isinstance(verdict, Refuse)
    assert verdict.status == 401
    assert "`defl dashboard` printed" in verdict.sentence


@pytest.mark.parametrize(
    "cookie",
    [
        "defl-dashboard-8400=wrong",
        "defl-dashboard-8400=",
        f"defl-dashboard-8401={TOKEN}",  # of a dashboard at another port: cookies ignore ports
        f"x-defl-dashboard-8400={TOKEN}",
        f"defl-dashboard-8400={TOKEN}\xff",
    ],
)
def test_only_this_dashboards_cookie_with_the_whole_token_admits(cookie: str) -> None:
    assert status(head(cookie=cookie)) == 401


def test_a_cookie_that_another_service_set_beside_the_right_one_does_no_harm() -> None:
    assert status(head(cookie=f"theme=dark; defl-dashboard-8400=planted; {COOKIE}")) == 200


def test_the_right_token_earns_the_cookie_and_leads_to_an_address_without_it() -> None:
    verdict = GUARD.judge(head("/rounds/7", f"node=a%26b&token={TOKEN}", cookie=""))

    assert verdict == Enter("/rounds/7?node=a%26b", by_page=False)


@pytest.mark.parametrize(
    "query", ["token=wrong", "token=", f"token={TOKEN}x", f"token=x&token={TOKEN}"]
)
def test_a_wrong_token_is_refused_even_with_the_right_cookie(query: str) -> None:
    assert status(head(query=query)) == 401


def test_a_token_leads_to_no_other_host() -> None:
    verdict = GUARD.judge(head("//evil.example/x", f"token={TOKEN}"))

    assert isinstance(verdict, Enter)
    assert verdict.location == "/evil.example/x"


def test_a_token_is_not_accepted_for_data() -> None:
    """Otherwise it would stand in addresses that are copied."""
    assert status(head("/api/overview", f"token={TOKEN}", cookie="")) == 401


def test_a_link_on_another_page_is_followed_by_a_page_because_the_cookie_is_strict() -> None:
    verdict = GUARD.judge(head(query=f"token={TOKEN}", cookie="", sec_fetch_site="cross-site"))

    assert verdict == Enter("/", by_page=True)


@pytest.mark.parametrize("path", ["/api/overview", "/files/alice/federation.toml"])
def test_another_sites_request_for_data_is_refused_even_with_the_cookie(path: str) -> None:
    """same-site: a page of another port of this host, to which the cookie is sent."""
    assert status(head(path, sec_fetch_site="cross-site")) == 403
    assert status(head(path, sec_fetch_site="same-site")) == 403
    assert status(head(path, sec_fetch_site="same-origin")) == 200
    assert status(head(path, sec_fetch_site="none")) == 200


def test_a_head_beyond_the_bound_is_refused_before_anything_else() -> None:
    long = "a" * HEAD_BYTES_MAX

    assert [status(head(long)), status(head(query=long)), status(head(x=long))] == [431] * 3
