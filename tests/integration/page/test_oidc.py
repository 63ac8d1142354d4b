"""Signing in by a real OpenID provider, with an API server that trusts it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect
from yarl import URL

from master.page.cookies import Cookies
from tests.integration.installed.site import until
from tests.integration.page.provider import NAME, PASSWORD, USER, SignInPlace, trusted_provider

pytestmark = pytest.mark.integration


@pytest_asyncio.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SignInPlace]:
    async with trusted_provider(tmp_path_factory.mktemp("oidc")) as place:
        yield place


async def sign_in(page: Page, url: str) -> None:
    await page.goto(f"{url}/quotas?state=full")
    await page.get_by_role("link", name="Sign in with 127.0.0.1").click()
    # A provider that remembers the browser asks nothing.
    await page.wait_for_url(lambda there: "username" in there or there == f"{url}/quotas?state=full")
    if "username" in page.url:
        await page.fill("input[name=username]", USER)
        await page.fill("input[name=password]", PASSWORD)
        await page.get_by_role("button").click()
    await page.wait_for_url(f"{url}/quotas?state=full")
    assert NAME in await page.inner_text("body")


async def sign_out(page: Page) -> None:
    await page.locator(".menu summary").click()
    await page.get_by_role("button", name="Sign out").click()


async def test_a_provider_signs_somebody_in_and_the_api_server_proves_who(place: SignInPlace, browser: Browser) -> None:
    context = await browser.new_context(ignore_https_errors=True)
    page = await context.new_page()
    await sign_in(page, place.url)
    names = {cookie["name"]: cookie for cookie in await context.cookies(place.url)}
    assert Cookies().attempt not in names and all(each["httpOnly"] and each["secure"] for each in names.values())
    await sign_out(page)
    await page.goto(f"{place.url}/quotas")
    assert "/sign-in" in page.url
    await context.close()


async def test_below_a_path_all_works_and_another_page_of_the_host_keeps_its_session(
    place: SignInPlace, browser: Browser
) -> None:
    context = await browser.new_context(ignore_https_errors=True)
    page, other = await context.new_page(), await context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    await sign_in(other, place.url)
    await sign_in(page, place.below)
    kept = {cookie["name"]: cookie["path"] for cookie in await context.cookies([place.below])}
    assert kept == {"__Secure-seedquota": "/tools/quota", "__Host-seedquota": "/"}
    await expect(page.locator("#connection")).to_have_text("Live", timeout=15_000)
    for path, said in (("", "Overview"), ("/seeds", "There is no seed yet"), ("/settings", "Default quota")):
        await page.goto(f"{place.below}{path}")
        assert said in await page.inner_text("body"), path
    await page.get_by_role("link", name="Quotas", exact=True).click()
    await page.fill("#q", "nothing")
    await page.wait_for_url(f"{place.below}/quotas?q=nothing**")
    await page.get_by_role("link", name="HTTP API").click()
    await page.get_by_role("link", name="openapi.json", exact=True).click()
    assert page.url == f"{place.below}/openapi.json"
    assert '"servers":[{"url":"/tools/quota/"}]' in await page.inner_text("body")
    await page.goto(f"{place.below}/quotas")
    await sign_out(page)
    await page.wait_for_url(f"{place.below}/sign-in")
    await other.reload()
    assert NAME in await other.inner_text("body")
    assert not complaints
    await context.close()


async def test_the_http_api_below_a_path_sends_nobody_out_of_it(
    place: SignInPlace, session: aiohttp.ClientSession
) -> None:
    headers = {"Authorization": f"Bearer {place.server.tokens['admin']}"}
    for name in ("a", "b"):
        body = {"name": name, "subjectKind": "project", "subjectName": name, "quota": {"cpu": "1"}}
        async with session.post(f"{place.below}/api/v2/quotas", json=body, headers=headers) as answer:
            assert (answer.status, answer.headers["Location"]) == (201, f"/tools/quota/api/v2/quotas/{name}")
    root = place.below.removesuffix("/tools/quota")
    for base in (place.below, root):  # a proxy may also remove the path

        async def both(base: str = base) -> None:
            async with session.get(f"{base}/api/v2/quotas?limit=1", headers=headers) as answer:
                assert answer.headers["Link"].startswith("</tools/quota/api/v2/quotas?")

        await until(both, 15)


async def begun(session: aiohttp.ClientSession, place: SignInPlace, next_path: str = "/") -> tuple[str, dict[str, str]]:
    """The cookie of an attempt, and what the provider is asked; under "" the whole address."""
    async with session.get(f"{place.url}/sign-in/oidc?next={next_path}", allow_redirects=False) as answer:
        assert answer.status == 303
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        there = answer.headers["Location"]
        asked = {name: values[0] for name, values in parse_qs(urlsplit(there).query).items()}
        return cookie, {**asked, "": there}


async def code_for(session: aiohttp.ClientSession, place: SignInPlace, asked: dict[str, str]) -> str:
    """As a browser gets it, from the provider's own pages."""
    async with session.get(URL(asked[""], encoded=True)) as answer:
        found = re.search(r'name="id" value="([^"]+)"', await answer.text())
        assert found is not None, await answer.text()
    form = {"username": USER, "password": PASSWORD, "id": found[1]}
    url = f"{place.provider.issuer}/login/username"
    async with session.post(url, data=form, allow_redirects=False) as answer:
        there = answer.headers["Location"]
    there = there if there.startswith("http") else f"{place.provider.issuer}{there}"
    async with session.get(there, allow_redirects=False) as answer:
        return parse_qs(urlsplit(answer.headers["Location"]).query)["code"][0]


async def back(session: aiohttp.ClientSession, place: SignInPlace, cookie: str, **query: str) -> tuple[int, str]:
    url = f"{place.url}/sign-in/oidc/callback"
    async with session.get(url, params=query, headers={"Cookie": cookie}, allow_redirects=False) as answer:
        made = [each for each in answer.headers.getall("Set-Cookie", ()) if each.startswith("__Host-seedquota=")]
        assert bool(made) == (answer.status == 303)
        return answer.status, answer.headers.get("Location", "") or await answer.text()


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


async def test_a_sign_in_is_ended_only_by_the_browser_that_began_it(
    place: SignInPlace, session: aiohttp.ClientSession
) -> None:
    mine, asked = await begun(session, place)
    theirs, of_theirs = await begun(session, place)
    assert asked["code_challenge_method"] == "S256" and asked["state"] != of_theirs["state"]
    code = await code_for(session, place, asked)
    for cookie, state in ((theirs, asked["state"]), (mine, of_theirs["state"]), (mine, ""), ("", asked["state"])):
        status, text = await back(session, place, cookie, code=code, state=state)
        assert status == 401 and "Not signed in" in text
    # Another's code, with one's own state: the verifier of PKCE is not that of the code.
    status, _ = await back(session, place, theirs, code=code, state=of_theirs["state"])
    assert status == 401


async def test_a_code_is_good_once_and_nobody_is_sent_to_another_host(
    place: SignInPlace, session: aiohttp.ClientSession
) -> None:
    cookie, asked = await begun(session, place, "//evil.example")
    code = await code_for(session, place, asked)
    assert await back(session, place, cookie, code=code, state=asked["state"]) == (303, "/")
    assert (await back(session, place, cookie, code=code, state=asked["state"]))[0] == 401


async def test_what_a_provider_says_went_wrong_is_no_part_of_the_page(
    place: SignInPlace, session: aiohttp.ClientSession
) -> None:
    cookie, asked = await begun(session, place)
    status, text = await back(session, place, cookie, error="<script>alert(1)</script>", state=asked["state"])
    assert status == 401 and "did not sign you in" in text and "<script>alert" not in text


async def test_a_provider_that_signs_with_a_new_key_signs_people_in_at_once(
    place: SignInPlace, browser: Browser, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one of these tests has another key after each start. The API server asks for it by itself."""
    monkeypatch.setattr("master.page.oidc.KEYS_AGAIN_SECONDS", 0.0)

    async def signed_in() -> str:
        """The name of the key."""
        context = await browser.new_context(ignore_https_errors=True)
        await sign_in(await context.new_page(), place.url)
        await context.close()
        async with session.get(f"{place.provider.issuer}/keys") as answer:
            (key,) = (await answer.json())["keys"]
            return str(key["kid"])

    first = await signed_in()
    await place.provider.stop()
    await place.provider.start()
    assert await signed_in() != first


async def test_a_session_of_another_kind_of_cookie_is_none(place: SignInPlace, session: aiohttp.ClientSession) -> None:
    cookie, _ = await begun(session, place)
    planted = f"__Host-seedquota={cookie.partition('=')[2]}"
    async with session.get(f"{place.url}/", headers={"Cookie": planted}, allow_redirects=False) as answer:
        assert answer.status == 303 and answer.headers["Location"].startswith("/sign-in")
