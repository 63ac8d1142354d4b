"""A tenant who writes, sends and opens whatever does most harm, while another one goes on."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

import aiohttp
import pytest

from common.server import connections
from devcluster.install import Program
from devcluster.load import machine
from seed.webhooks.review import MAX_USER
from tests.integration.installed.site import MACHINES, SMALL, Json, Site, cpus, until

pytestmark = pytest.mark.integration

LONGEST_STALL = 2.0  # seconds, on a machine that has much else to do; what explodes took over a minute
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/seedquota-machines"


def agent(site: Site) -> Program:
    """The replica that answers for user-1."""
    return next(
        program
        for name, program in site.installed.programs.items()
        if name.startswith("seedquota-seed-1") and not name.endswith("-b")
    )


async def admits(site: Site, cluster: str, count: int = 1) -> list[str]:
    """So many Machines, each within a time in which people try again."""
    return [await until(partial(_one, site, cluster), 30) for _ in range(count)]


async def _one(site: Site, cluster: str) -> str:
    answer = await site.create(cluster)
    assert answer.status == 201, answer
    return str(answer.body["metadata"]["name"])


async def metric(site: Site, name: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{agent(site).health}/metrics") as answer:
        found = re.search(rf"^{name} (\S+)$", await answer.text(), re.MULTILINE)
        assert found is not None, name
        return float(found[1])


def with_spec(name: str, provider: str, spec: Json) -> Json:
    made: Json = machine(name, SMALL)
    made["spec"]["providerSpec"]["value"].update({"cloudProvider": provider, "cloudProviderSpec": spec})
    return made


def laughing() -> Json:
    lines = ["m0: &m0 {k: v}"]
    lines += [f"m{level}: &m{level} {{<<: [{', '.join([f'*m{level - 1}'] * 9)}]}}" for level in range(1, 12)]
    kubeconfig = base64.b64encode("\n".join(lines).encode()).decode()
    disk = {"primaryDisk": {"size": "1Gi"}}
    vm = {"instancetype": {"name": "u1.nano"}, "template": disk}
    return with_spec("laughing", "kubevirt", {"auth": {"kubeconfig": {"value": kubeconfig}}, "virtualMachine": vm})


async def test_a_machine_that_explodes_when_it_is_read_is_refused_and_stops_nobody(site: Site) -> None:
    await site.quota(cpus(10))
    answer = await site.call("user-1", "POST", MACHINES, laughing())
    assert answer.status == 422, answer
    assert "cannot size machine" in answer.message
    wide = with_spec("wide", "fake", {f"k{number}": 1 for number in range(1000)})
    answer = await site.call("user-1", "POST", MACHINES, wide)
    assert answer.status == 422, answer
    assert "more than 512 fields" in answer.message
    await admits(site, "user-2")
    await admits(site, "user-1")
    assert await metric(site, "seedquota_event_loop_longest_stall_seconds") < LONGEST_STALL


async def test_a_machine_that_is_nested_deep_freezes_no_count(site: Site) -> None:
    """Its status is not admitted by anybody."""
    await site.quota(cpus(10))
    (name,) = await admits(site, "user-1")
    path = f"{MACHINES}/{name}"
    try:
        patch = b'{"status": {"deep": %b%b}}' % (b"[" * 3000, b"]" * 3000)
        headers = {"Content-Type": "application/merge-patch+json"}
        async with site._sessions["user-1"].patch(f"{path}/status", data=patch, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
        await admits(site, "user-1", 2)
        await site.uses(cpus(3))
    finally:
        await site.delete("user-1", path)  # others here read all Machines, with less care


async def test_a_long_name_of_a_user_is_not_kept(site: Site) -> None:
    await site.quota(cpus(10))
    headers = {"Impersonate-User": "u" * 50_000, "Impersonate-Group": "system:masters"}
    body = machine("dry", SMALL)

    async def asked() -> None:
        answer = await site.call("user-1", "POST", MACHINES, body, headers=headers, dryRun="All")
        assert answer.status == 201, answer

    await until(asked, 30)
    where = f"{agent(site).health}/decisions?machine=dry"
    async with aiohttp.ClientSession() as session, session.get(where) as page:
        decisions = (await page.json())["items"]
    assert decisions
    assert all(len(decision["user"]) <= MAX_USER + 3 for decision in decisions)


async def test_connections_that_show_nothing_push_out_no_api_server(site: Site) -> None:
    """They come from the address of the API servers, as behind a load balancer."""
    await site.quota(cpus(10))
    await admits(site, "user-1")
    configuration = await site.get("user-1", _WEBHOOKS)
    where = urlsplit(configuration["webhooks"][0]["clientConfig"]["url"])
    trusting = ssl.create_default_context(
        cadata=base64.b64decode(configuration["webhooks"][0]["clientConfig"]["caBundle"]).decode()
    )
    opened: list[asyncio.StreamWriter] = []
    try:
        for number in range(connections.MAX_UNPROVEN_OF_ONE + 100):
            tls = trusting if number % 4 == 0 else None
            with suppress(OSError):
                _, writer = await asyncio.open_connection(where.hostname, where.port, ssl=tls)
                writer.write(b"P" if tls is not None else b"")
                opened.append(writer)
        await admits(site, "user-1", 2)
        await admits(site, "user-2")
    finally:
        for writer in opened:
            writer.transport.abort()
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"https://{where.netloc}/machines/someone/{'0' * 32}", data=b"x" * 2**20, ssl=trusting) as answer,
    ):
        assert answer.status == 404
