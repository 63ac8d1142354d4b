"""A tenant who writes, sends and opens whatever does most harm, while another one goes on."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from common.server import connections, pki
from devcluster.install import SEED_USER, Program
from devcluster.load import machine
from seed.webhooks.review import MAX_USER
from tests.integration.installed.site import CLUSTERS, MACHINES, PROJECT, QUOTA, SMALL, WINDOW, Json, Site, cpus, until
from tests.integration.installed.test_clusters import put_secret

pytestmark = pytest.mark.integration

LONGEST_STALL = 20.0  # seconds, also of a machine that has much else to do; what explodes took over a minute
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
        found = re.search(rf"^{re.escape(name)} (\S+)$", await answer.text(), re.MULTILINE)
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


NO_TEXT = "-no-text-"  # what becomes the byte


def in_an_item(listed: Json, name: str) -> None:
    for item in listed["items"]:
        if item["metadata"]["name"] == name:
            item["metadata"]["labels"] = {"a": NO_TEXT}


def in_a_name(listed: Json, _name: str) -> None:
    listed["items"] = [{"metadata": {"name": NO_TEXT, "uid": "u"}}]


def outside_of_the_items(listed: Json, _name: str) -> None:
    listed["items"] = []
    listed["metadata"]["resourceVersion"] = NO_TEXT


class Spoiler:
    """Leads to an API server, and spoils its lists of Machines. Its watches tell nothing, and end with each change."""

    def __init__(self, behind: aiohttp.ClientSession, name: str) -> None:
        self.looked_for = 0  # Machines by their names
        self._behind = behind
        self._name = name
        self._spoil: Callable[[Json, str], None] = in_an_item
        self._changed = asyncio.Event()
        self._listed = False

    def spoil(self, how: Callable[[Json, str], None]) -> None:
        self._spoil, self._listed = how, False
        self._changed.set()
        self._changed = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        of_machines = request.method == "GET" and request.path.endswith("/machines")
        if "watch" in request.query:
            if of_machines and not self._listed:
                return web.json_response({"kind": "Status", "code": 410, "reason": "Expired"}, status=410)
            stream = web.StreamResponse()
            await stream.prepare(request)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), float(request.query["timeoutSeconds"]))
            return stream
        passed = ("Authorization", "Content-Type", "Accept")
        headers = {name: request.headers[name] for name in passed if name in request.headers}
        body = await request.read()
        async with self._behind.request(request.method, request.path_qs, headers=headers, data=body) as answer:
            content = await answer.read()
        if of_machines and answer.status == 200:
            self._listed = True
            self.looked_for += "fieldSelector" in request.query
            listed = json.loads(content)
            self._spoil(listed, self._name)
            content = json.dumps(listed).encode().replace(NO_TEXT.encode(), b"\xda")
        return web.Response(status=answer.status, body=content, content_type=answer.content_type)


@asynccontextmanager
async def spoiled(site: Site, cluster: str, name: str) -> AsyncIterator[tuple[Spoiler, str]]:
    """And the kubeconfig that leads to it."""
    server = site.server(cluster)
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(ssl=False)) as behind:
        spoiler = Spoiler(behind, name)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", spoiler.answer)
        now, policy = datetime.now(UTC), pki.Policy()
        ca = pki.make_ca(now, policy)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pki.load(context, pki.make_serving(now, ca, ["127.0.0.1"], policy))
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            port = runner.addresses[0][1]
            trusted, ours = (base64.b64encode(each).decode() for each in (server.ca.encode(), ca.certificate_pem()))
            yield spoiler, server.kubeconfig(SEED_USER, port=port).replace(trusted, ours)
        finally:
            await runner.cleanup()


async def test_a_list_with_a_byte_that_is_no_text_takes_no_count_away_and_ends_no_agent(site: Site) -> None:
    """What was admitted there is looked for by reads. An agent that has read none of it goes on from the last count."""
    cluster, good = f"{CLUSTERS}/user-1", {"kubeconfig": site.server("user-1").kubeconfig(SEED_USER)}
    await site.quota(cpus(10))
    (name,) = await admits(site, "user-1")
    await site.uses(cpus(1))

    late = site.late  # what was answered too late may have reserved something, too

    async def counts(cpu: str, *, reserved: int) -> None:
        account = (await site.ledger("seed-1", QUOTA))["account"]
        assert account["used"]["alpha/user-1"]["cpu"] == cpu, account
        assert 0 <= len(account.get("reservations", "").splitlines()) - reserved <= site.late - late, account
        assert not account.get("nonce"), "it is open"

    async def not_current(reason: str, text: str) -> None:
        await site.comes("seed-1", cluster, "UsageCurrent", "False", reason, text)
        await site.comes("master", f"resourcequotas/{QUOTA}", "UsageCurrent", "False", "ResourceNotListed", text)

    async with spoiled(site, "user-1", name) as (spoiler, kubeconfig):
        try:
            await put_secret(site, "seed-1", "user-1", PROJECT, {"kubeconfig": kubeconfig})
            await not_current("ObjectsUnreadable", f"1 machines cannot be read, such as kube-system/{name}: ")
            assert await metric(site, 'seedquota_malformed_objects{resource="machines",server="alpha/user-1"}') == 1
            await until(partial(counts, "1", reserved=0), 30)
            await site.kill(agent(site))
            await site.start(agent(site))
            await not_current("ObjectsUnreadable", f"kube-system/{name}: ")
            await until(partial(counts, "1", reserved=0), 60)
            await admits(site, "user-2")

            async def is_looked_for() -> None:
                assert spoiler.looked_for > 0

            for number, how in enumerate((in_a_name, outside_of_the_items), 1):
                spoiler.spoil(how)
                await not_current("MachinesUnreadable", "")
                spoiler.looked_for = 0
                await admits(site, "user-1")
                await until(is_looked_for, 60)
                await asyncio.sleep(WINDOW)  # in which it would be released
                await counts("1", reserved=number)
                await admits(site, "user-2")
            assert agent(site).ended_by_itself() is None
        finally:
            await put_secret(site, "seed-1", "user-1", PROJECT, good)
    await site.comes("seed-1", cluster, "UsageCurrent", "True")
    await site.reserves_nothing("seed-1", "seed-2")
    await site.uses(cpus(6))


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
