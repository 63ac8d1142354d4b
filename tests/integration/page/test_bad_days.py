"""What somebody who looks sees while parts of SeedQuota are away."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

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
