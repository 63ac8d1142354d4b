"""What is asked and written by forms: limits, what fits, why something was refused."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from devcluster.install import GROUP_PATH
from devcluster.load import Outcome, Size
from tests.integration.installed.site import until
from tests.integration.page.place import EVIL, NOBODY, OPERATOR, TENANT, Place
from tests.integration.page.test_page import accessible

pytestmark = pytest.mark.integration

EDIT = "/quotas/project-secret/edit"


async def limits(place: Place) -> dict[str, str]:
    found: dict[str, str] = (await place.kube("GET", f"{GROUP_PATH}/resourcequotas/project-secret"))["spec"]["quota"]
    return found


@pytest_asyncio.fixture(autouse=True)
async def left_as_found(place: Place) -> AsyncIterator[None]:
    """Whatever a test saved before it failed: others share the installation."""
    yield
    limits = {"quota": {"cpu": "7", "memory": None}, "overrides": None, "warnAtPercent": None}
    for path, spec in (
        ("resourcequotas/project-secret", limits),
        ("resourcequotas/project-alpha", {"guaranteed": None}),
        ("quotasettings/default", {"defaults": None}),
        ("seeds/seed-2", {"state": "Active"}),
    ):
        await place.kube("PATCH", f"{GROUP_PATH}/{path}", {"spec": spec})


async def test_limits_are_previewed_then_saved(place: Place, browser: Browser) -> None:
    async with place.looking(browser, OPERATOR) as window:
        await window.open("/quotas/project-secret")
        await window.page.get_by_role("link", name="Edit limits").click()
        await window.page.fill("[name='limit.cpu']", "9")
        await window.page.fill("[name='new.name']", "memory")
        await window.page.fill("[name='new.limit']", "4Gi")
        await window.page.get_by_role("button", name="Preview").click()
        text = await window.text()
        assert "cpu 7 9" in text and "memory unlimited 4Gi" in text
        assert (await limits(place))["cpu"] == "7"
        await accessible(window)
        await window.page.get_by_role("button", name="Save").click()
        await window.page.wait_for_url(f"{place.url}/quotas/project-secret")
        assert await limits(place) == {"cpu": "9", "memory": "4Gi"}

    async def written() -> None:
        lines = place.installed.programs["seedquota-master"].log.read_text().splitlines()
        audit = [json.loads(line) for line in lines if '"master.apiserver.audit"' in line]
        last = [line for line in audit if line["path"] == EDIT][-1]
        assert (last["user"], last["address"], last["status"]) == (
            f"system:serviceaccount:default:{OPERATOR}", "127.0.0.1", 303,
        )  # fmt: skip
        limits_after = {"cpu": "9", "memory": "4Gi"}
        assert last["changes"] == {"quota": "project-secret", "before": {"cpu": "7"}, "limits": limits_after}

    await until(written, 15)


async def test_a_guarantee_is_set_by_the_form_and_seen_where_limits_are(
    place: Place, browser: Browser, shots: Path | None
) -> None:
    async def shot(name: str) -> None:
        if shots is not None:
            await window.page.screenshot(path=shots / f"guarantee-{name}.png", full_page=True)

    async with place.looking(browser, OPERATOR) as window:
        await window.open("/quotas/project-alpha/edit")
        await window.page.fill("[name='guaranteed.cpu']", "9")
        await window.page.get_by_role("button", name="Save").click()
        assert "guaranteed is more than the limit in quota" in await window.text()
        await window.page.fill("[name='guaranteed.cpu']", "8")
        await window.page.get_by_role("button", name="Preview").click()
        await expect(window.page.get_by_role("row", name="cpu 0 8")).to_be_visible()
        await accessible(window)
        await shot("form")
        await window.page.get_by_role("button", name="Save").click()
        await window.page.wait_for_url(f"{place.url}/quotas/project-alpha")
        cpu = window.page.get_by_role("region", name="cpu", exact=True)
        await expect(cpu).to_contain_text("Guaranteed", timeout=15_000)
        await expect(cpu).not_to_contain_text("fits", timeout=15_000)
        await window.open("/quotas/org-acme")
        table = window.page.get_by_role("region", name="Guaranteed to projects")
        await expect(table).to_contain_text("alpha", timeout=15_000)
        await expect(window.page.get_by_role("region", name="cpu", exact=True)).to_contain_text(
            "Of it kept for projects"
        )
        await accessible(window)
        await shot("quota")
    async with place.looking(browser, TENANT) as window:
        await window.open("/organizations/acme")
        await expect(window.page.get_by_role("region", name="Capacity of acme")).to_contain_text("Of it kept")
        await accessible(window)
        await shot("organization")
        await window.open("/projects/alpha")
        await expect(window.page.get_by_role("region", name="cpu", exact=True)).to_contain_text("Guaranteed")
        await shot("project")


async def test_an_edit_never_overwrites_another_one(place: Place, browser: Browser) -> None:
    async with place.looking(browser, OPERATOR) as window:
        await window.open(EDIT)
        await window.page.fill("[name='limit.cpu']", "11")
        body = {"spec": {"quota": {"cpu": "12"}}}
        await place.kube("PATCH", f"{GROUP_PATH}/resourcequotas/project-secret", body)
        await window.page.get_by_role("button", name="Save").click()
        assert "Somebody else has made a change meanwhile" in await window.text()
        assert (await limits(place))["cpu"] == "12"


async def test_a_limit_is_raised_for_a_time_and_the_end_is_shown(place: Place, browser: Browser) -> None:
    path = f"{GROUP_PATH}/resourcequotas/project-secret"
    async with place.looking(browser, OPERATOR) as window:
        await window.open("/quotas/project-secret")
        await window.page.get_by_role("link", name="Raise for a time").click()
        await window.page.fill("[name='limit.cpu']", "21")
        await window.page.fill("[name=until]", "2099-12-31T08:30")
        await window.page.fill("[name=reason]", EVIL)
        await window.page.get_by_role("button", name="Preview").click()
        assert "cpu 7 21" in await window.text()
        await accessible(window)
        assert "overrides" not in (await place.kube("GET", path))["spec"]
        await window.page.get_by_role("button", name="Save").click()
        await window.page.wait_for_url(f"{place.url}/quotas/project-secret")
        table = window.page.get_by_role("region", name="Raised for a time")
        await expect(table).to_contain_text("in force", timeout=15_000)
        await expect(table).to_contain_text("2099-12-31T08:30:00Z")
        assert EVIL in await table.inner_text() and await window.page.evaluate("window.pwned") is None
        await accessible(window)
        (raised,) = (await place.kube("GET", path))["spec"]["overrides"]
        assert (raised["until"], raised["quota"]) == ("2099-12-31T08:30:00Z", {"cpu": "21"})
        await window.open("/quotas/project-secret/raise")
        await window.page.get_by_label("Keep what is raised until").uncheck()
        await place.kube("PATCH", path, {"spec": {"warnAtPercent": 70}})
        await window.page.get_by_role("button", name="Save").click()
        assert "Somebody else has made a change meanwhile" in await window.text()
        await window.page.get_by_label("Keep what is raised until").uncheck()
        await window.page.get_by_role("button", name="Save").click()
        await window.page.wait_for_url(f"{place.url}/quotas/project-secret")
        assert "overrides" not in (await place.kube("GET", path))["spec"]


async def test_a_default_quota_shows_whom_it_touches_before_it_is_set(place: Place, browser: Browser) -> None:
    async with place.looking(browser, OPERATOR) as window:
        await window.open("/settings")
        await window.page.get_by_role("link", name="Change the default of organizations").click()
        await window.page.fill("[name='new.name']", "servers")
        await window.page.fill("[name='new.limit']", "10")
        await window.page.get_by_role("button", name="Preview").click()
        text = await window.text()
        assert "1 get a quota: globex" in text and "servers unlimited 10" in text
        await accessible(window)
        assert "defaults" not in (await place.kube("GET", f"{GROUP_PATH}/quotasettings/default"))["spec"]
        await window.page.get_by_role("button", name="Save").click()
        await window.page.wait_for_url(f"{place.url}/settings")
        spec = (await place.kube("GET", f"{GROUP_PATH}/quotasettings/default"))["spec"]
        assert spec["defaults"]["organization"]["quota"] == {"servers": "10"}
        await window.open("/settings/organization/edit")
        await window.page.get_by_role("button", name="Remove the default").click()
        await window.page.wait_for_url(f"{place.url}/settings")
        assert not (await place.kube("GET", f"{GROUP_PATH}/quotasettings/default"))["spec"].get("defaults")


async def test_a_seed_is_drained_with_a_look_at_what_that_frees(place: Place, browser: Browser) -> None:
    async with place.looking(browser, OPERATOR) as window:
        await window.open("/seeds/seed-2")
        await window.page.get_by_role("link", name="Drain it").click()
        assert "What draining gives to other seeds" in await window.text()
        await accessible(window)
        await window.page.get_by_role("button", name="Drain it").click()
        await window.page.wait_for_url(f"{place.url}/seeds/seed-2")
        assert (await place.kube("GET", f"{GROUP_PATH}/seeds/seed-2"))["spec"]["state"] == "Draining"
        await window.open("/seeds/seed-2/edit")
        await window.page.get_by_role("button", name="Give it capacity again").click()
        await window.page.wait_for_url(f"{place.url}/seeds/seed-2")
        assert (await place.kube("GET", f"{GROUP_PATH}/seeds/seed-2"))["spec"]["state"] == "Active"


async def test_a_limit_that_is_wrong_is_named_and_not_written(place: Place, browser: Browser) -> None:
    async with place.looking(browser, OPERATOR) as window:
        before = await limits(place)
        for name, limit, said in (("cpu", "many", "cpu"), ("cpu", EVIL, "cpu"), ("servrs", "3", "servrs")):
            await window.open(EDIT)
            if name == "cpu":
                await window.page.fill("[name='limit.cpu']", limit[:64])
            else:
                await window.page.fill("[name='new.name']", name)
                await window.page.fill("[name='new.limit']", limit)
            await window.page.get_by_role("button", name="Save").click()
            assert said in await window.page.inner_text("[role=alert]")
            assert await window.page.evaluate("window.pwned") is None
        assert await limits(place) == before


async def test_nobody_writes_without_the_right_or_for_another_site(place: Place) -> None:
    before = await limits(place)
    mine = await place.cookie(OPERATOR)
    form = {"limit.cpu": "1", "version": "", "action": "save"}
    for headers, csrf in (
        ({"Cookie": mine}, ""),
        ({"Cookie": mine}, "forged"),
        ({"Cookie": mine, "Origin": "https://evil.example"}, "forged"),
        ({"Cookie": mine, "Sec_Fetch_Site": "cross-site"}, "forged"),
    ):
        assert (await place.post(EDIT, {**form, "csrf": csrf}, **headers))[0] == 403
    for actor in (TENANT, NOBODY):
        theirs = await place.cookie(actor)
        page = (await place.get("/decisions", Cookie=theirs))[1]
        found = re.search(r'name="csrf" value="([^"]+)"', page)
        assert found is not None
        assert (await place.post(EDIT, {**form, "csrf": found[1]}, Cookie=theirs))[0] == 404
        assert (await place.get(EDIT, Cookie=theirs))[0] == 404
        # Nor with the secret of another one's session.
        assert (await place.post(EDIT, {**form, "csrf": found[1]}, Cookie=mine))[0] == 403
    assert await limits(place) == before


async def test_a_tenant_asks_what_fits_and_why_something_was_refused(place: Place, browser: Browser) -> None:
    refused = await place.tenant.create(Size("64", "1Gi", "1Gi"))
    assert refused.outcome is Outcome.REFUSED
    decision = refused.message.rpartition("decision ")[2].strip()
    async with place.looking(browser, TENANT) as window:
        await window.open("/projects/alpha")
        await window.page.get_by_role("link", name="Does it fit?").click()
        await window.page.fill("[name='need.cpu']", "1")
        await window.page.fill("[name=replicas]", "40")
        await window.page.get_by_role("button", name="Does it fit?").click()
        text = await window.text()
        assert "Does not fit" in text and "project-alpha" in text and "seed-1" in text
        await accessible(window)
        await window.page.fill("[name='need.cpu']", EVIL)
        await window.page.get_by_role("button", name="Does it fit?").click()
        assert "is not a quantity" in await window.page.inner_text("[role=alert]")
        await window.open("/projects/alpha/fits")
        manifest = window.page.get_by_role("form", name="A manifest that is to fit")
        for text, said in ((EVIL, "is no object of Kubernetes"), ("a: 1", "2 of 2 seeds could not be asked")):
            await manifest.get_by_role("textbox").first.fill(text)
            await manifest.get_by_role("button", name="Does the manifest fit?").click()
            await expect(window.page.locator(".notice").first).to_contain_text(said, timeout=15_000)
            assert await manifest.get_by_role("textbox").first.input_value() == text
        await accessible(window)
        await window.open(f"/decisions?id={decision}")
        await accessible(window)
        text = await window.text()
        assert decision in text
        await window.open("/projects/alpha")
        await window.page.get_by_role("link", name="Refused in the last hour").click()
        await expect(window.page.locator("#refusals")).to_contain_text("Not every seed was asked", timeout=15_000)
        assert window.page.url.endswith("/projects/alpha"), "it comes into the page"
        await window.open("/projects/alpha/refusals")
        assert "2 of 2 seeds could not be asked" in await window.text()
        await accessible(window)
        await window.open("/decisions?id=%3Cscript%3E")
        assert "eight letters and digits" in await window.text()
        assert await window.page.evaluate("window.pwned") is None


async def test_allocations_are_listed_with_the_rights_of_the_http_api(place: Place) -> None:
    status, text, _ = await place.get("/organizations/acme/allocations", TENANT)
    assert status == 200 and "Nothing is allocated" in text
    assert (await place.get("/organizations/acme/allocations", NOBODY))[0] == 404


async def test_the_user_clusters_that_use_most_of_a_quota_are_asked_of_the_seeds(
    place: Place, browser: Browser
) -> None:
    """With the rights that the master has on every seed."""

    async def listed() -> None:
        status, text, _ = await place.get("/quotas/project-alpha/clusters", OPERATOR)
        assert status == 200 and "Not every seed was asked" not in text, text
        assert re.search(rf"/{name}</th>.*cpu <strong><span>[0-9]+ cores", text), text

    name = next(iter(place.installed.user_clusters.values()))
    await until(listed, 60)
    async with place.looking(browser, OPERATOR) as window:
        await window.open("/quotas/project-alpha")
        await window.page.get_by_role("link", name="User clusters with the most").click()
        await expect(window.page.locator("#clusters")).to_contain_text(f"/{name}", timeout=15_000)
        assert window.page.url.endswith("/quotas/project-alpha"), "it comes into the page"
        await accessible(window)
    answer = await place.get("/api/v2/quotas/project-alpha/clusters?limit=1", OPERATOR)
    assert answer[0] == 200 and '"notAsked":""' in answer[1], answer
    for path in ("/quotas/project-alpha/clusters", "/quotas/none/clusters"):
        assert (await place.get(path, TENANT))[0] == 404
    assert (await place.get("/api/v2/quotas/project-alpha/clusters", TENANT))[0] == 403
