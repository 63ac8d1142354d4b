"""What the page shows that only the agents know, in a real browser: asked of real agents through real API servers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import yaml
from playwright.async_api import Browser, expect

from devcluster import manifests
from devcluster.balancer import Balancer
from devcluster.install import MASTER_USER, NAMESPACE, Program
from devcluster.load import Outcome, Size, machine
from devcluster.network import free_port
from devcluster.objects import CHARTS, rights
from tests.integration.installed.site import until
from tests.integration.page.place import OPERATOR, TENANT, Place, Window
from tests.integration.page.test_page import accessible
from tests.integration.test_http_api import own_address

pytestmark = pytest.mark.integration

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
STARTS = 3  # of a master that a busy machine kept from asking at its start


@asynccontextmanager
async def reachable(place: Place, seed: str) -> AsyncIterator[None]:
    """The agent of the seed is a process. Its API server takes it for a pod, and the master may ask it."""
    server, program = place.installed.cluster(seed), place.installed.programs[f"seedquota-{seed}"]
    explain = CHARTS / "rbac" / "explain.yaml"
    may = [*rights("explain", MASTER_USER), *rights("master-decisions", MASTER_USER)]
    await manifests.apply(server, [*manifests.load(explain), *may])
    way = Balancer([int(program.health.rpartition(":")[2])], own_address())
    port = {"name": "health", "containerPort": way.port}
    pod = {
        "metadata": {"name": "agent", "labels": {"app.kubernetes.io/name": "seedquota-seed"}},
        "spec": {
            "serviceAccountName": "seedquota-explain",
            "containers": [{"name": "c", "image": "i", "ports": [port]}],
        },
    }
    status = {"phase": "Running", "podIP": own_address(), "podIPs": [{"ip": own_address()}]}
    patch = {"Content-Type": "application/merge-patch+json"}
    async with server.session() as session:
        await answered(session, "POST", PODS, json=pod)
        try:
            await answered(session, "PATCH", f"{PODS}/agent/status", json={"status": status}, headers=patch)
            yield
        finally:
            await answered(session, "DELETE", f"{PODS}/agent?gracePeriodSeconds=0")
            for name in (f"seedquota-explain-{MASTER_USER}", f"seedquota-previews-{MASTER_USER}"):
                path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings/{name}"
                await answered(session, "DELETE", path)
            await way.close()


async def answered(session: aiohttp.ClientSession, method: str, path: str, **sent: object) -> None:
    async with session.request(method, path, **sent) as answer:  # type: ignore[arg-type]
        assert answer.status < 300, await answer.text()


@pytest_asyncio.fixture
async def asked(place: Place) -> AsyncIterator[Place]:
    """Every agent can be asked, and both replicas of the master know it."""

    async def told() -> None:
        for url in place.installed.api_urls:
            headers = {"Authorization": f"Bearer {place.tokens[OPERATOR]}"}
            async with place.http.get(f"{url}/api/v1/refusals?quota=project-alpha", headers=headers) as answer:
                assert (await answer.json())["notAsked"] == ""

    async with AsyncExitStack() as stack:
        for seed in place.installed.seeds:
            await stack.enter_async_context(reachable(place, seed))
        await until(told, 60)
        yield place


async def until_it_says(window: Window, decision: str) -> None:
    """The agents are asked as often as the page is opened, and one that is late is left out."""

    async def says() -> None:
        try:
            await expect(window.page.locator("#refusals")).to_contain_text(decision, timeout=15_000)
        except AssertionError:
            await window.page.reload()
            raise

    await until(says, 60)


async def test_what_was_refused_is_listed_and_marked_on_the_plots(
    asked: Place, browser: Browser, shots: Path | None
) -> None:
    refused = await asked.tenant.create(Size("64", "1Gi", "1Gi"))
    assert refused.outcome is Outcome.REFUSED
    decision = refused.message.rpartition("decision ")[2].strip()
    async with asked.looking(browser, OPERATOR) as window:
        await window.open("/quotas/project-alpha")
        await window.page.get_by_role("link", name="Refused in the last hour").click()
        await until_it_says(window, decision)
        await accessible(window)

    async def known() -> None:
        status, text, _ = await asked.get("/quotas/project-alpha", OPERATOR)
        assert status == 200 and "Refused at least " in text and "<figure>" in text, text

    for start in range(STARTS):  # it asks at its start, and then every ten minutes
        await asked.installed.programs["seedquota-master"].stop()
        await asked.installed.programs["seedquota-master"].start()
        try:
            await until(known, 20)
            break
        except AssertionError:
            if start == STARTS - 1:
                raise
    async with asked.looking(browser, OPERATOR) as window:
        await window.open("/quotas/project-alpha")
        live = window.page.locator("#live")
        cpu = live.locator("figure", has=window.page.locator("figcaption strong", has_text=re.compile("^cpu$")))
        assert "There may be others." in await live.inner_text(), "the agents did not run in all of these hours"
        assert await cpu.locator("rect.refused").count() == 1
        said = await cpu.locator("svg").get_attribute("aria-label") or ""
        assert re.search(r"; refused at least (once|[0-9]+ times) on ", said), said
        assert "refused at least" in await cpu.locator("figcaption").inner_text()
        await accessible(window)
        if shots is not None:
            await cpu.screenshot(path=shots / "plot-refused.png")
        await window.open("/")
        refusals = window.page.get_by_role("region", name="Refusals")
        await expect(refusals).to_contain_text(
            re.compile("Since .* UTC, at least:.*[0-9]+ by project-alpha", re.DOTALL)
        )
        assert "not all refusals of this time are known" in await refusals.inner_text()
        await accessible(window)
    async with asked.looking(browser, TENANT, java_script_enabled=False) as window:
        await window.open("/projects/alpha")
        assert "Refused at least " in await window.text(), "also to whoever may see the project, and without script"


@asynccontextmanager
async def read_from_prometheus(place: Place, url: str) -> AsyncIterator[list[Program]]:
    """The replicas of the master, which keep no file meanwhile."""
    replicas = [place.installed.programs[f"seedquota-master{suffix}"] for suffix in ("", "-b")]
    commands = [replica._command for replica in replicas]
    for replica in replicas:
        kept = [each for each in replica._command if not each.startswith("--history-file=")]
        replica._command = [*kept, f"--history-prometheus-url={url}"]
    try:
        yield replicas
    finally:
        for replica, command in zip(replicas, commands, strict=True):
            replica._command = command
            await replica.stop()
            await replica.start()


async def test_the_replica_that_leads_exports_what_was_refused_for_the_prometheus_that_keeps_it(asked: Place) -> None:
    """Reading it again is tested in tests/chart. Of this quota nothing would be read before its second two hours."""
    assert (await asked.tenant.create(Size("64", "1Gi", "1Gi"))).outcome is Outcome.REFUSED

    async def exported(replica: Program) -> set[str]:
        """Its samples of the quota, without the values, of whatever part."""
        async with asked.http.get(f"{replica.health}/metrics") as answer:
            lines = re.sub(r'part="[0-9]{2}:00",', "", await answer.text()).splitlines()
        return {each.rpartition(" ")[0] for each in lines if "_refusals{" in each and "project-alpha" in each}

    async with read_from_prometheus(asked, f"http://127.0.0.1:{free_port()}") as replicas:

        async def known() -> None:
            wanted = {f'seedquota_quota_refusals{{quota="project-alpha",resource="{name}"}}' for name in ("", "cpu")}
            found = [await exported(replica) for replica in replicas]
            assert any(wanted <= each for each in found) and set() in found, found
            status, text, _ = await asked.get("/quotas/project-alpha", OPERATOR)
            assert status == 200 and "Refused at least " in text, text

        for start in range(STARTS):
            for replica in replicas:
                await replica.stop()
                await replica.start()
            try:
                await until(known, 30)
                break
            except AssertionError:
                if start == STARTS - 1:
                    raise


async def test_a_manifest_is_compared_with_a_quota_by_real_agents(asked: Place, browser: Browser) -> None:
    template = {"spec": machine("m", Size("1", "1Gi", "1Gi"))["spec"]}
    pool = {
        "apiVersion": "cluster.k8s.io/v1alpha1",
        "kind": "MachineDeployment",
        "metadata": {"name": "pool-a"},
        "spec": {"replicas": 40, "template": template},
    }
    async with asked.looking(browser, TENANT) as window:
        await window.open("/projects/alpha/fits")
        form = window.page.get_by_role("form", name="A manifest that is to fit")
        await form.get_by_role("textbox").first.fill(yaml.safe_dump(pool))
        answer = window.page.locator("section.answer")

        async def does_not_fit() -> None:
            """By all agents, of which one may be late."""
            await form.get_by_role("button", name="Does the manifest fit?").click()
            await expect(answer).to_contain_text("Does not fit", timeout=15_000)
            text = " ".join((await answer.inner_text()).split())
            assert "machines of machinedeployment/pool-a" in text and " of 40 " in text, text
            assert "seed-1" in text and "seed-2" in text, "both know what it uses"
            assert "Not every seed was asked" not in await window.text()

        await until(does_not_fit, 60)
        await accessible(window)
        await form.get_by_role("textbox").nth(1).fill("1")

        async def is_compared() -> None:
            await form.get_by_role("button", name="Does the manifest fit?").click()
            await expect(answer.get_by_role("cell", name=re.compile("^[01] of 1$"))).to_be_visible(timeout=15_000)

        await until(is_compared, 60)
