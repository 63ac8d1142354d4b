"""The page as people reach it: by a port-forward, and by an Ingress of the chart, below a path, through Contour."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from devcluster import certificates, chromium, ingress, isolation
from devcluster.network import free_port
from devcluster.objects import project, quota
from tests.e2e.cluster import IMAGE, NAMESPACE, Cluster, Site, chart, restricted, site, until, values

HOST, PREFIX = "quota.example.com", "/tools/quota"
URL = f"https://{HOST}{PREFIX}"
QUOTA = "project-alpha"
FORGED = "203.0.113.9"
NODE = isolation.FIRST
LIMIT = "section[aria-label=cpu] .key-limit dd"
VIEWS = (
    "/",
    "/quotas",
    f"/quotas/{QUOTA}",
    "/projects/alpha",
    "/seeds",
    "/settings",
    "/decisions",
    f"/quotas/{QUOTA}/edit",
)
WHERE = """all => all.map(each => new URL(["href", "src", "action"].map(name => each.getAttribute(name))
  .find(value => value !== null), location).href)"""
ON: dict[str, object] = {"api__enabled": True}
BEHIND: dict[str, object] = {
    **ON,
    "page__url": URL,
    "api__ingress": {"enabled": True, "className": ingress.CLASS, "tlsSecret": "of-the-host"},
}


@pytest_asyncio.fixture(scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with site(tmp_path_factory.mktemp("in")) as started:
        yield started


@pytest_asyncio.fixture(scope="module")
async def home(started: Site) -> Cluster:
    """The chart is installed with the page, and without an Ingress."""
    cluster = await started.cluster("home", NODE)
    await cluster.apply(restricted(NAMESPACE))
    await cluster.install("master", **ON)
    await cluster.apply(project("alpha"), quota(QUOTA, "alpha", {"cpu": "7"}))
    await cluster.kubectl("create", "serviceaccount", "ann", "-n", "default")
    for role in ("viewer", "platform-administrator"):
        of = f"--clusterrole=seedquota:{role}"
        await cluster.kubectl("create", "clusterrolebinding", f"ann-{role}", of, "--serviceaccount=default:ann")
    return cluster


@pytest_asyncio.fixture(scope="module")
async def token(home: Cluster) -> str:
    return (await home.kubectl("create", "token", "ann", "-n", "default", "--duration=8h")).strip()


@pytest_asyncio.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    found = chromium.ensure()
    hosts = f"--host-resolver-rules=MAP {HOST} {NODE.address}"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=found.program, args=[*chromium.FLAGS, hosts], env={**os.environ, **found.environment}
        )
        yield browser
        await browser.close()


@asynccontextmanager
async def signed_in(browser: Browser, url: str, token: str, *, may_complain: bool = False) -> AsyncIterator[Page]:
    """Whatever the page loads is below its address, and is there, unless it may complain."""
    context = await browser.new_context(ignore_https_errors=True, extra_http_headers={"X-Forwarded-For": FORGED})
    wrong: list[str] = []
    try:
        page = await context.new_page()
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "response", lambda answer: wrong.append(f"{answer.status} {answer.url}") if answer.status > 399 else None
        )
        await page.goto(f"{url}/")
        page.on("request", lambda asked: None if asked.url.startswith(f"{url}/") else wrong.append(asked.url))
        await page.fill("#token", token)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_url(f"{url}/")
        yield page
        assert may_complain or wrong == []
    finally:
        await context.close()


async def live(page: Page) -> None:
    await expect(page.locator("#connection")).to_have_text("Live", timeout=60_000)


async def a_change_is_seen(home: Cluster, page: Page, limit: str) -> None:
    """In the page that is there, which is not loaded again: events arrive one by one."""
    await live(page)
    await page.evaluate("window.stays = true")
    await home.apply(quota(QUOTA, "alpha", {"cpu": limit}))
    await expect(page.locator(LIMIT)).to_have_text(f"{limit} cores", timeout=60_000)
    assert await page.evaluate("window.stays")


class Asking:
    """Requests by the Ingress without a browser, which trust the certificate of the host and no other."""

    def __init__(self, ca: str) -> None:
        self._tls = ssl.create_default_context(cadata=ca)

    @asynccontextmanager
    async def __call__(self, method: str, path: str, **given: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Host": HOST, **given.pop("headers", {})}
        given |= {"ssl": self._tls, "server_hostname": HOST, "allow_redirects": False}
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, f"https://{NODE.address}{path}", headers=headers, **given) as answer,
        ):
            yield answer


async def test_by_a_port_forward(home: Cluster, browser: Browser, token: str) -> None:
    port = free_port()
    async with home.forwarded("service/seedquota-master", port, 443):
        url = f"https://localhost:{port}"
        async with signed_in(browser, url, token) as page:
            await page.goto(f"{url}/quotas/{QUOTA}")
            await a_change_is_seen(home, page, "8")


@pytest_asyncio.fixture(scope="module")
async def asking(started: Site, home: Cluster) -> Asking:
    """Then an Ingress is switched on, with a certificate for its host."""
    await started.serve_ingresses(home, NODE)
    serving = certificates.serving("host", HOST)
    pair = {"tls.crt": serving.certificate, "tls.key": serving.key}
    metadata = {"name": "of-the-host", "namespace": NAMESPACE}
    await home.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "stringData": pair}
    )
    await home.helm("upgrade", "seedquota-master", chart("master"), "-n", NAMESPACE, *values(**IMAGE, **BEHIND))
    await home.rolled_out("seedquota-master")
    asking = Asking(serving.ca)

    async def served() -> None:
        try:
            async with asking("GET", f"{PREFIX}/sign-in") as answer:
                assert answer.status == 200, answer.status
        except aiohttp.ClientConnectionError as error:
            raise AssertionError(error) from None

    await until(served, 60)
    return asking


async def test_by_an_ingress_below_a_path_all_works_and_nothing_is_outside_of_it(
    home: Cluster, asking: Asking, browser: Browser, token: str
) -> None:
    async with signed_in(browser, URL, token) as page:
        (cookie,) = await page.context.cookies([f"{URL}/"])
        assert (cookie["name"], cookie["path"], cookie["httpOnly"]) == ("__Secure-seedquota", PREFIX, True)
        for path in VIEWS:
            await page.goto(f"{URL}{path}")
            await expect(page.locator("h1")).to_be_visible()
            links = await page.eval_on_selector_all("[href], [src], [action]", WHERE)
            assert len(links) > 5
            assert [link for link in links if not link.startswith(f"{URL}/")] == [], path
        await page.goto(f"{URL}/quotas/{QUOTA}")
        await a_change_is_seen(home, page, "9")
        await page.locator(".menu summary").click()
        await page.get_by_role("button", name="Sign out").click()
        await page.wait_for_url(f"{URL}/sign-in")
    for path in ("/", "/quotas", f"{PREFIX}s/quotas"):
        async with asking("GET", path) as answer:
            assert (answer.status, await answer.read()) == (404, b""), f"{path} is not of this Ingress"
    async with asking("GET", f"{PREFIX}/api/v2/quotas", headers={"Authorization": f"Bearer {token}"}) as answer:
        assert QUOTA in await answer.text()


async def test_an_edit_by_an_ingress_is_of_its_session_and_a_forged_address_is_not_in_the_audit_log(
    home: Cluster, asking: Asking, browser: Browser, token: str
) -> None:
    edit = f"/quotas/{QUOTA}/edit"
    async with signed_in(browser, URL, token) as page:
        await page.goto(f"{URL}{edit}")
        await page.fill("[name='limit.cpu']", "11")
        await page.get_by_role("button", name="Save").click()
        await page.wait_for_url(f"{URL}/quotas/{QUOTA}")
        (cookie,) = await page.context.cookies([f"{URL}/"])
    found = await home.get(f"/apis/seedquota.io/v1alpha1/resourcequotas/{QUOTA}")
    assert found["spec"]["quota"] == {"cpu": "11"}
    mine = {"Cookie": f"{cookie['name']}={cookie['value']}"}
    async with asking("POST", f"{PREFIX}{edit}", data={"limit.cpu": "12", "csrf": "wrong"}, headers=mine) as answer:
        assert (answer.status, "not of this session" in await answer.text()) == (403, True)
    stolen = {"token": token, "next": "/"}
    async with asking("POST", f"{PREFIX}/sign-in", data=stolen, headers={"Origin": "https://evil.example"}) as answer:
        assert answer.status == 403
    pods = "-l=app.kubernetes.io/name=seedquota-master"
    logs = await home.kubectl("-n", NAMESPACE, "logs", pods, "--tail=-1")
    audit = [json.loads(line) for line in logs.splitlines() if '"master.apiserver.audit"' in line]
    (written,) = (each for each in audit if each["path"].endswith(edit))
    assert (written["user"], written["status"]) == ("system:serviceaccount:default:ann", 303)
    assert written["address"] == str(ipaddress.ip_network(NODE.pods)[1]), "of the proxy"
    assert FORGED not in logs


async def test_who_looks_by_an_ingress_stays_signed_in_while_the_master_is_updated(
    home: Cluster, asking: Asking, browser: Browser, token: str
) -> None:
    async with signed_in(browser, URL, token, may_complain=True) as page:
        await page.goto(f"{URL}/quotas/{QUOTA}")
        await live(page)
        await home.restart("seedquota-master")
        await a_change_is_seen(home, page, "13")
