"""Sessions that nobody but a replica can make, and that end."""

from __future__ import annotations

import base64
import json
import secrets
from random import Random

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from master.page.cookies import PIECE, Cookies
from master.page.navigation import prefix_of, safe_path
from master.page.session import SECONDS, Sealer, TooLongError, new_key
from master.page.sign_in import expiry_of
from tests.clock import Clock


def test_a_session_is_opened_by_each_replica_with_the_key_and_by_no_other() -> None:
    key = new_key()
    session, sealed = Sealer(key).begin("the-token")
    assert Sealer(key).session(sealed) == session
    assert "the-token" not in sealed
    changed = sealed[:20] + ("B" if sealed[20] == "A" else "A") + sealed[21:]
    for wrong in ("", "x", sealed[:-2], changed, "ü"):
        assert Sealer(key).session(wrong) is None
    assert Sealer(new_key()).session(sealed) is None


def test_two_sessions_of_one_token_have_nothing_in_common() -> None:
    sealer = Sealer(new_key())
    (one, sealed), (two, sealed_too) = sealer.begin("t"), sealer.begin("t")
    assert one.csrf != two.csrf and sealed != sealed_too
    assert one.has_sent(one.csrf) and not one.has_sent(two.csrf) and not one.has_sent("")


def test_a_session_ends_with_its_token_and_after_some_hours_at_the_latest() -> None:
    clock = Clock(1_000_000_000.0)
    sealer = Sealer(new_key(), clock)
    (_, short), (_, long) = sealer.begin("t", clock.now + 60), sealer.begin("t", clock.now + 1e9)
    clock.now += 59
    assert sealer.session(short) is not None
    clock.now += 2
    assert sealer.session(short) is None and sealer.session(long) is not None
    clock.now += SECONDS
    assert sealer.session(long) is None


def test_what_was_sealed_for_something_else_is_no_session() -> None:
    sealer = Sealer(new_key())
    session, _ = sealer.begin("t")
    other = sealer.seal("sign-in", session)
    assert sealer.session(other) is None
    assert sealer.open("sign-in", other, 60) is not None and sealer.open("session", other, 60) is None


def test_a_long_token_takes_two_cookies_and_a_longer_one_is_refused() -> None:
    sealer = Sealer(new_key())
    random = base64.b64encode(Random(1).randbytes(3900)).decode()
    session, sealed = sealer.begin(random)
    response = web.Response()
    Cookies().keep_session(response, make_mocked_request("GET", "/"), sealed, 60)
    cookies = {name: kept.value for name, kept in response.cookies.items()}
    assert len(cookies) == 2 and max(map(len, cookies.values())) <= PIECE
    assert sealer.session(Cookies().session_of(cookies)) == session
    assert Cookies("/quota").session_of(cookies) == ""
    with pytest.raises(TooLongError):
        sealer.begin(secrets.token_urlsafe(8000))


@pytest.mark.parametrize("wanted", ["/", "/quotas?state=full&q=a%20b", "/seeds/eu-1", "/quotas/a..b?q=/../"])
def test_a_path_of_the_page_is_kept(wanted: str) -> None:
    assert safe_path(wanted) == wanted


@pytest.mark.parametrize(
    "wanted",
    ["", "https://evil.example", "//evil.example", "/\\evil.example", "\\\\evil.example", "/\t/evil.example",
     "/%0d%0aSet-Cookie:x", "javascript:alert(1)", "/\nx", "evil", "/" + "a" * 2000],
)  # fmt: skip
def test_no_browser_is_sent_to_another_host(wanted: str) -> None:
    assert safe_path(wanted) in ("/", wanted) and (safe_path(wanted) == "/" or wanted.startswith("/%0d"))


@pytest.mark.parametrize("wanted", ["/../mail", "/quotas/../../mail", "/%2e%2E/mail", "/.%2e", "/..?x", "/./x"])
def test_no_browser_is_sent_beside_the_prefix(wanted: str) -> None:
    """There may be another application of the same host, as which a browser would then act."""
    assert safe_path(wanted) == "/"


def token(**claims: object) -> str:
    return f"x.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.y"


@pytest.mark.parametrize(
    ("given", "ends"),
    [(token(exp=17), 17.0), (token(), None), (token(exp="x"), None), ("opaque", None), ("a.!.c", None), ("..", None)],
)
def test_of_a_token_only_its_end_is_read(given: str, ends: float | None) -> None:
    assert expiry_of(given) == ends


@pytest.mark.parametrize(
    ("url", "prefix"),
    [("", ""), ("https://a.example", ""), ("https://a.example/", ""), ("https://a.example/b-1/c/", "/b-1/c")],
)
def test_the_path_of_the_pages_address_is_before_all_paths(url: str, prefix: str) -> None:
    assert prefix_of(url) == prefix


@pytest.mark.parametrize("path", ["/a;b", "/a//b", "/..", "/a/.", "/a%20b", '/a"', "/a\\b"])
def test_a_path_that_is_no_plain_one_is_not_put_into_cookies_and_headers(path: str) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        prefix_of(f"https://a.example{path}")
