"""What somebody who looks sees while parts of SeedQuota are away."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from devcluster.balancer import Balancer
from devcluster.install import GROUP_PATH
from tests.integration.page.place import OPERATOR, Place, Window

pytestmark = pytest.mark.integration


async def test_who_looks_is_told_that_it_is_not_live_while_the_master_is_away(place: Place, browser: Browser) -> None:
    master = place.installed.programs["seedquota-master"]
    context = await browser.new_context(ignore_https_errors=True)
    window = Window(place, context, await context.new_page())
    await window.sign_in(OPERATOR)
    await window.open("/quotas/project-alpha")
    connection = window.page.locator("#connection")
    await expect(connection).to_have_text("Live", timeout=15_000)
    shown = await window.page.inner_text("#live")
    await master.kill()
    try:
        await expect(connection).to_have_text("Not live, trying again", timeout=15_000)
        assert (await window.page.inner_text("#live")).partition("Seeds")[0] == shown.partition("Seeds")[0]
    finally:
        await master.start()
    # Another process with the same Secret: nobody signs in again.
    await expect(connection).to_have_text("Live", timeout=60_000)
    await window.open("/quotas")
    assert "project-alpha" in await window.text()
    await context.close()


async def test_either_replica_of_the_master_can_be_killed_while_somebody_looks(place: Place, browser: Browser) -> None:
    """As behind a Service: the browser has one address, nobody signs in or loads the page again."""
    balancer = Balancer([int(url.rpartition(":")[2]) for url in place.installed.api_urls])
    path, url = f"{GROUP_PATH}/resourcequotas/project-alpha", f"https://127.0.0.1:{balancer.port}"
    replicas = [place.installed.programs[f"seedquota-master{suffix}"] for suffix in ("", "-b")]
    try:
        async with place.looking(browser, OPERATOR, url=url) as window:
            await window.open("/quotas/project-alpha")
            await window.page.evaluate("window.loaded = 'once'")
            storage = window.page.locator("section[aria-label=storage]")
            connection = window.page.locator("#connection")
            for replica, limit, shown in zip(replicas, ("3Ti", "2Ti"), ("3 Ti", "2 Ti"), strict=True):
                await expect(connection).to_have_text("Live", timeout=60_000)
                await replica.kill()
                try:
                    await place.kube("PATCH", path, {"spec": {"quota": {"storage": limit}}})
                    await expect(storage).to_contain_text(shown, timeout=60_000)
                finally:
                    await replica.start()
            assert await window.page.evaluate("window.loaded") == "once"
            window.complaints.clear()  # Chromium's, of the connections that ended
    finally:
        await place.kube("PATCH", path, {"spec": {"quota": {"storage": "1Ti"}}})
        await balancer.close()


async def test_a_seed_that_is_lost_while_somebody_looks_is_shown_and_what_is_known_of_it_stays(
    place: Place, browser: Browser
) -> None:
    seed = place.installed.cluster("seed-2")
    async with place.looking(browser, OPERATOR) as one, place.looking(browser, OPERATOR) as two:
        await two.open("/seeds/seed-2")
        tile, facts = one.page.locator(".tile", has_text="Seeds connected"), two.page.locator("#live .facts")
        await expect(tile).to_contain_text("2 of 2", timeout=60_000)
        reached = facts.locator("div", has_text="Reached by the master")
        await seed.kill()
        try:
            await expect(tile).to_contain_text("1 of 2", timeout=60_000)
            await expect(facts).to_contain_text("Unreachable", timeout=60_000)
            await expect(reached).to_contain_text("ago")
            await expect(one.page.locator("#connection")).to_have_text("Live")
            await one.open("/quotas/project-alpha")
            line = one.page.get_by_role("region", name="Seeds of project-alpha").get_by_role("row", name="seed-2")
            await expect(line).to_contain_text("Stale", timeout=60_000)
        finally:
            await seed.start()
        await expect(facts).not_to_contain_text("Unreachable", timeout=60_000)
