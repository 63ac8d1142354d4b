"""What people see of a real installation in a real browser."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Request, expect

from devcluster.demo.__main__ import explain
from devcluster.demo.screen import Screen
from devcluster.load import Outcome, Size
from devcluster.patience import is_busy
from tests.integration.page.place import EVIL, NOBODY, OPERATOR, TENANT, Place, Window

pytestmark = pytest.mark.integration

VIEWS = {
    "/": "Overview",
    "/quotas": "project-alpha",
    "/quotas/project-alpha": "Limits project alpha",
    "/projects/alpha": "Project alpha",
    "/organizations/acme": "128 Gi",
    "/seeds": "seed-1",
    "/seeds/seed-1": "Conditions",
    "/settings": "Default quota of projects",
    "/quotas/project-alpha/edit": "An empty field removes the limit",
    "/quotas/project-alpha/raise": "in force until the time that you give",
    "/projects/alpha/fits": "Nothing is reserved",
    "/quotas/project-alpha/clusters": "User clusters with the most",
    "/quotas/project-alpha/fits": "Only this quota is asked",
    "/projects/alpha/machinetypes": "Not every seed was asked",
    "/organizations/acme/allocations": "Nothing is allocated",
    "/decisions": "Why was it refused?",
    "/settings/project/edit": "each project without a quota gets one",
    "/seeds/seed-1/edit": "What draining gives to other seeds",
    "/start": "Open a project",
}
MADE_OF_NO_OBJECT = ("/projects/alpha/machinetypes", "/decisions", "/start")
WIDTHS = (360, 1280, 2560, 3840)
FIRST_VIEW_BYTES = 150_000
FIRST_VIEW_REQUESTS = 6  # the page, its style, its icon and three scripts


async def accessible(window: Window) -> None:
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    found = await Axe().run(window.page, options={"runOnly": rules, "resultTypes": ["violations"]})
    assert found.violations_count == 0, found.generate_report()


async def test_an_operator_sees_every_view_at_every_width(place: Place, browser: Browser, shots: Path | None) -> None:
    for scheme in ("light", "dark"):
        async with place.looking(browser, OPERATOR, color_scheme=scheme) as window:
            for path, expected in VIEWS.items():
                await window.open(path)
                assert expected in await window.text(), path
                said = await window.page.locator("footer .same dt").all_text_contents()
                assert "HTTP API" in said and ("kubectl" in said) == (path != "/projects/alpha/machinetypes"), path
                assert ("YAML" in said) == (path not in MADE_OF_NO_OBJECT), path
                await accessible(window)
                for width in WIDTHS:
                    await window.page.set_viewport_size({"width": width, "height": 800 if width < 2000 else 1300})
                    wide = await window.page.evaluate("document.documentElement.scrollWidth")
                    assert wide <= width, f"{path} is {wide} px wide in {width}"
                    if shots is not None:
                        name = path.strip("/").replace("/", "-") or "overview"
                        file = shots / f"{name}-{width}-{scheme}.png"
                        await window.page.screenshot(path=file, full_page=width < 2000)
            assert await window.page.evaluate("window.pwned") is None


async def test_what_hostile_users_write_is_shown_as_text(place: Place, browser: Browser) -> None:
    async with place.looking(browser, OPERATOR) as window:
        for path in ("/projects/alpha", "/organizations/globex", "/settings"):
            await window.open(path)
            assert EVIL in await window.text(), path
            assert await window.page.evaluate("window.pwned") is None
        await window.open("/quotas?q=" + "%3Cscript%3Ewindow.pwned=1%3C/script%3E")
        assert await window.page.input_value("#q") == "<script>window.pwned=1</script>"
        assert await window.page.evaluate("window.pwned") is None
    status, text, headers = await place.get("/projects/alpha/yaml", OPERATOR)
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert "onerror" in text and headers["X-Content-Type-Options"] == "nosniff"


async def test_the_list_is_searched_without_a_click_and_its_address_can_be_shared(
    place: Place, browser: Browser
) -> None:
    async with place.looking(browser, OPERATOR) as window:
        await window.open("/quotas")
        await window.page.fill("#q", "secret")
        await expect(window.page.locator(".row")).to_have_count(1)
        await window.page.wait_for_url("**/quotas?q=secret**")
        async with place.looking(browser, OPERATOR) as another:
            await another.page.goto(window.page.url)
            await expect(another.page.locator(".row")).to_have_count(1)


async def test_all_can_be_read_and_searched_without_script(place: Place, browser: Browser) -> None:
    async with place.looking(browser, OPERATOR, java_script_enabled=False) as window:
        await window.open("/quotas")
        await window.page.fill("#q", "secret")
        await window.page.get_by_role("button", name="Filter").click()
        await expect(window.page.locator(".row")).to_have_count(1)
        await window.page.get_by_role("link", name="project-secret").click()
        assert "Limits project secret" in await window.text()
        await window.page.locator(".menu summary").click()
        await window.page.get_by_role("button", name="Sign out").click()
        assert "/sign-in" in window.page.url


async def test_a_keyboard_is_enough(place: Place, browser: Browser) -> None:
    async with place.looking(browser, OPERATOR) as window:
        await window.page.keyboard.press("Tab")
        assert await window.page.evaluate("document.activeElement.textContent") == "Skip to content"
        await window.page.keyboard.press("Enter")
        assert await window.page.evaluate("document.activeElement.id") == "main"


async def test_what_is_no_view_can_be_used_by_everybody_as_well(place: Place, browser: Browser) -> None:
    for scheme in ("light", "dark"):
        async with place.looking(browser, OPERATOR, color_scheme=scheme) as window:
            await window.open("/sign-in")
            await accessible(window)
            await window.page.fill("#token", "wrong")
            await window.page.get_by_role("button", name="Sign in").click()
            assert "does not know this token" in await window.text()
            await accessible(window)
            await window.open("/quotas/absent")
            assert "absent" in await window.text()
            await accessible(window)
            window.complaints.clear()  # the browser's own, of answers with 401 and 404


async def test_a_first_view_is_small_and_needs_few_requests(place: Place, browser: Browser) -> None:
    async with place.looking(browser, OPERATOR) as window:
        context = await browser.new_context(ignore_https_errors=True)
        await context.add_cookies(await window.context.cookies())
        page = await context.new_page()
        requests: list[Request] = []
        page.on("requestfinished", lambda request: requests.append(request))  # noqa: PLW0108 (it marks what it calls)
        begun = time.monotonic()
        await page.goto(f"{place.url}/", wait_until="load")
        seconds = time.monotonic() - begun
        # When the page follows the events, it asks for itself again: on a slow machine before it has loaded.
        again = ("xhr", page.url)
        first = [request for request in requests if (request.resource_type, request.url) != again]
        sizes = [await request.sizes() for request in first]
        received = sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes)
        print(f"\nthe first view: {received / 1000:.1f} kB in {len(sizes)} requests, {seconds:.2f} s")
        assert 0 < received < FIRST_VIEW_BYTES
        assert seconds < 5 or is_busy()
        assert len(sizes) <= FIRST_VIEW_REQUESTS, [request.url for request in first]
        await context.close()


async def test_a_tenant_sees_the_own_project_and_nothing_of_others(place: Place, browser: Browser) -> None:
    async with place.looking(browser, TENANT) as window:
        assert "Open a project or an organization" in await window.text()
        await window.page.select_option("select[name=kind]", "projects")
        await window.page.fill("input[name=name]", "alpha")
        await window.page.get_by_role("button", name="Open").click()
        text = await window.text()
        assert "Project alpha" in text and "seed-1" not in text
        await window.open("/organizations/acme")
        assert "Capacity" in await window.text()


HIDDEN = (
    "/quotas",
    "/quotas/project-secret",
    "/quotas/project-secret/yaml",
    "/projects/secret",
    "/projects/secret/yaml",
    "/organizations/globex",
    "/organizations/globex/yaml",
    "/seeds",
    "/seeds/seed-1",
    "/seeds/seed-1/yaml",
    "/settings",
    "/settings/default/yaml",
    "/settings/project/edit",
    "/seeds/seed-1/edit",
    "/quotas/project-secret/edit",
    "/quotas/project-secret/raise",
    "/quotas/project-secret/fits",
    "/quotas/project-secret/clusters",
    "/quotas/project-secret/refusals",
    "/projects/secret/fits",
    "/projects/secret/machinetypes",
    "/projects/secret/refusals",
    "/organizations/globex/allocations",
)


@pytest.mark.parametrize("actor", [TENANT, NOBODY])
async def test_who_has_no_right_learns_nothing_not_even_that_something_exists(place: Place, actor: str) -> None:
    for path in HIDDEN:
        status, text, _ = await place.get(path, actor)
        assert status in ((404,) if "secret" in path or "globex" in path else (403, 404)), path
        assert not any(word in text for word in ("onerror", "cpu", "WebhookServing")), path
        absent, other, _ = await place.get(path.replace("secret", "absent").replace("globex", "absent"), actor)
        assert absent == status
        assert other.replace("absent", "X") == text.replace("secret", "X").replace("globex", "X")
    overview = (await place.get("/", actor))[1]
    assert "secret" not in overview and "seed-1" not in overview


COUNTED = "section[aria-label=machines] .key-counted dd"
NOTE_CHANGE = """selector => {
  const text = () => document.querySelector(selector).textContent;
  const before = text();
  new MutationObserver(() => { if (!window.changedAt && text() !== before) window.changedAt = Date.now() / 1000; })
    .observe(document.body, {subtree: true, childList: true, characterData: true});
}"""


async def test_a_machine_is_seen_within_a_second(place: Place, browser: Browser) -> None:
    async with place.looking(browser, OPERATOR) as one, place.looking(browser, OPERATOR) as two:
        for window in (one, two):
            await window.open("/quotas/project-alpha")
            await expect(window.page.locator("#connection")).to_have_text("Live", timeout=15_000)
            await window.page.evaluate(NOTE_CHANGE, COUNTED)
        before = await one.page.locator(COUNTED).inner_text()
        begun = time.time()
        assert (await place.tenant.create(Size("1", "1Gi", "1Gi"))).outcome is Outcome.ADMITTED
        admitted = time.time()
        for window in (one, two):
            await expect(window.page.locator(COUNTED)).not_to_have_text(before, timeout=15_000)
            seen: float = await window.page.evaluate("window.changedAt")
            assert seen > begun, "not before it was asked for, and in a page that was not loaded again"
            took, later = seen - begun, seen - admitted
            print(f"\na Machine is seen {took:.2f} s after it was sent, {later:.2f} s after the answer")


async def test_a_session_is_the_browsers_own_and_no_page_of_others_uses_it(place: Place) -> None:
    form = {"token": place.tokens[OPERATOR], "next": "//evil.example/x"}
    status, _, headers = await place.post("/sign-in", form)
    assert (status, headers["Location"]) == (303, "/")
    (cookie,) = headers.getall("Set-Cookie")
    assert all(word in cookie for word in ("__Host-", "HttpOnly", "Secure", "SameSite=Lax", "Path=/", "Max-Age="))
    assert place.tokens[OPERATOR] not in cookie
    status, text, _ = await place.post("/sign-in", form, Origin="https://evil.example")
    assert status == 403, text
    mine = cookie.partition(";")[0]
    for csrf in ("", "wrong"):
        assert (await place.post("/sign-out", {"csrf": csrf}, Cookie=mine))[0] == 403
    assert (await place.get("/", Cookie=mine))[0] == 200


async def test_a_session_that_somebody_planted_is_not_taken_over(place: Place) -> None:
    planted = await place.cookie(TENANT)
    form = {"token": place.tokens[OPERATOR], "next": "/"}
    _, _, headers = await place.post("/sign-in", form, Cookie=planted)
    assert headers.getall("Set-Cookie")[0].partition(";")[0] != planted
    assert f"default:{TENANT}" in (await place.get("/", Cookie=planted))[1]


async def test_the_demo_prints_where_the_page_is_and_a_token_for_it(place: Place) -> None:
    printed = io.StringIO()
    explain(place.installed, Screen(printed))
    lines = [line.strip() for line in printed.getvalue().splitlines()]
    (number,) = (number for number, line in enumerate(lines) if line.startswith("https://"))
    form = {"token": lines[number + 1], "next": "/"}
    async with place.http.post(f"{lines[number]}sign-in", data=form, allow_redirects=False) as answer:
        assert answer.status == 303
    (cookie,) = answer.headers.getall("Set-Cookie")
    assert "Overview" in (await place.get("/", Cookie=cookie.partition(";")[0]))[1]


async def test_who_is_not_signed_in_is_sent_to_the_page_for_that_and_back(place: Place) -> None:
    status, _, headers = await place.get("/quotas?state=full")
    assert (status, headers["Location"]) == (303, "/sign-in?next=%2Fquotas%3Fstate%3Dfull")
    status, _, headers = await place.get("/quotas", **{"HX-Request": "true"})
    assert (status, headers["HX-Redirect"]) == (204, "/sign-in?next=%2Fquotas")
    status, text, _ = await place.post("/sign-in", {"token": "wrong", "next": "/quotas"})
    assert status == 401 and "does not know this token" in text and "wrong" not in text
    status, _, headers = await place.get("/", Cookie="__Host-seedquota=forged")
    assert status == 303


async def test_every_page_forbids_frames_and_scripts_of_others(place: Place) -> None:
    for path in ("/sign-in", "/", "/quotas", "/nothing/here"):
        _, _, headers = await place.get(path, OPERATOR)
        if path != "/nothing/here":
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    ["/assets/x/..%2f..%2fapp.py", "/assets/../../app.py", "/assets/x/%2e%2e/session.py", "/assets/x/page.css%00",
     "/quotas/..%2f..%2fsecrets", "/quotas/a%2fb/yaml", "/secrets/seedquota-page/yaml"],
)  # fmt: skip
async def test_no_path_leads_to_a_file_or_another_kind(place: Place, path: str) -> None:
    status, text, _ = await place.get(path, OPERATOR)
    assert status in (400, 404) and "import" not in text and "session.key" not in text
