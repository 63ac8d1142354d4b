"""What is measured, each in a process of its own: our admission path on a real API server, and a bare echo beside it.

`python -m tests.bench.server admission|echo|allow` reads one JSON line with what it needs, prints one with where it
listens, and serves until its standard input closes. With RESERVE_AHEAD=off replicas have no blocks (rule 4.15).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

import uvloop
from aiohttp import web

from common.kube.client.api_client import Cluster
from common.quota import account as accounts
from common.quota import resources
from common.quota.account import BLOCKS, Account
from common.runtime import garbage
from common.runtime.redis_access import redis_url
from common.server.http_server import HttpServer
from common.server.serving_certificate import Certificates
from seed import metrics
from seed.accounts.registry import AccountRegistry
from seed.accounts.usage_writer import COUNT_AT_ONCE, COUNT_DELAY, FREED_DELAY
from seed.admission.admitter import Admission
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.cache.watches import Watches
from seed.instance_types.cache import FlavourCache
from seed.instance_types.http_client import Transport
from seed.instance_types.settings import SettingsReader
from seed.kinds.machines.admission import MachineAdmission
from seed.kinds.machines.webhook import MachineWebhook
from seed.kinds.registry import OF_PROJECTS
from seed.ledger.backend import ChosenStore, LedgerOptions
from seed.ledger.store_generation import REDIS
from seed.ledger.writer import AccountWriter
from seed.registration.token import WebhookKey
from seed.sizing.sizer import Sizing
from seed.webhooks.endpoint import Endpoint
from seed.webhooks.review import MAX_BODY
from seed.webhooks.router import route
from tests.running import running

NAMESPACE = "seedquota"
LEASE_SECONDS = 3
TOKEN = "bench"
EPOCH = 1


@dataclass(frozen=True)
class Facts:
    """What a server needs to know. Without a URL of Redis the API server keeps the accounts."""

    kubeconfig: str
    leads: bool
    redis_url: str

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True)
class Listening:
    port: int
    ca: str
    paths: list[str]


Ready = Callable[[Listening], Awaitable[None]]


async def admission(facts: Facts, ready: Ready) -> None:
    """The real path from the socket to the ledger in the real store and back.

    Machines do not exist here, so the counting that a leader does from its watch caches is played: as often as it
    would, the reservations of a user cluster become use, in a write like any other.
    """
    cluster = await Cluster.from_kubeconfig(facts.kubeconfig, name="bench")
    quota_cache = QuotaCache(cluster)
    cluster_cache = ClusterCache(cluster, quota_cache, of_projects=OF_PROJECTS)
    watches = Watches(*quota_cache.reflectors, *cluster_cache.reflectors)
    options = LedgerOptions(namespace=NAMESPACE)
    if facts.redis_url:
        options = replace(options, ledger_store=REDIS, redis_url=redis_url(facts.redis_url))
    chosen = ChosenStore(options, cluster, "bench", lambda: facts.leads, LEASE_SECONDS)
    ahead = os.environ.get("RESERVE_AHEAD") != "off"
    registry = AccountRegistry(quota_cache, cluster_cache, chosen.store, reserve_ahead=lambda _term: ahead)
    certificates = Certificates(cluster, NAMESPACE, ["127.0.0.1"])
    async with running(watches.run(), chosen.run(), certificates.run()) as tasks:
        await watches.wait_synced()
        await certificates.wait_ready(20)
        await chosen.store.keys()  # as soon as the store is in force
        key = WebhookKey(cluster, NAMESPACE)
        sizing = Sizing(FlavourCache(Transport()), SettingsReader(cluster), key.seal, key.check_seal)
        admission = MachineAdmission(quota_cache, Admission(quota_cache, registry), sizing)
        endpoint = Endpoint(MachineWebhook(cluster_cache, admission), metrics.decision)
        handle_request = route({"machines": endpoint}, lambda _name, _uid, token: token == TOKEN)
        quota = next(iter(quota_cache.all_quotas()))
        handle = registry.get(quota)
        assert handle is not None
        if facts.leads:
            await handle.writer.create(Account(incarnation="bench", master="bench", epoch=EPOCH, granted=quota.limits))
            tasks.append(asyncio.create_task(_keep_counting(handle.writer)))
        server = HttpServer(handle_request, max_body=MAX_BODY)
        await server.start("127.0.0.1", 0, certificates.ssl_context)
        garbage.begin()  # as the program does
        paths = [f"/machines/{found.metadata.uid}/{TOKEN}" for found in cluster_cache.user_clusters.store.values()]
        await ready(Listening(server.port, certificates.ca_bundle.decode(), paths))
        await server.stop(0)
    await registry.close()
    await chosen.close()
    await cluster.close()


async def _keep_counting(writer: AccountWriter) -> None:
    """Each user cluster when it is due, as seed/accounts/usage_writer.py does."""
    since: dict[str, float] = {}
    while True:
        await asyncio.sleep(FREED_DELAY)
        account = writer.account
        reservations = account.reservations.values() if account is not None else ()
        waiting = Counter(kept.source for kept in reservations if kept.source != BLOCKS)
        now = time.monotonic()
        since = {source: since.get(source, now) for source in waiting}
        due = [
            source
            for source, number in waiting.items()
            if number >= COUNT_AT_ONCE or now - since[source] >= COUNT_DELAY
        ]
        for source in due:
            del since[source]
        await asyncio.gather(*(writer.change(partial(_count, source)) for source in due))


def _count(source: str, account: Account) -> tuple[Account, None]:
    mine = {uid: kept.amount for uid, kept in accounts.of_source(account, source).items()}
    used = resources.add(account.used.get(source, {}), resources.total(mine.values()))
    return accounts.count(account, EPOCH, source, used, dict.fromkeys(mine, 0)), None


async def echo(facts: Facts, ready: Ready) -> None:
    """As little as aiohttp can do: read the body, answer with as many bytes as an allowed review has."""
    await _answer(facts, ready, lambda _body: _ALLOWED)


async def allow(facts: Facts, ready: Ready) -> None:
    """The least that an API server accepts as an answer: it names the request."""

    def answer(body: bytes) -> bytes:
        uid = _UID.search(body)
        return _ALLOWED.replace(_NOBODY, uid[1]) if uid is not None else _ALLOWED

    await _answer(facts, ready, answer)


_NOBODY = b"0" * 36
_UID = re.compile(rb'"uid":"([^"]{36})"')
_ALLOWED = json.dumps(
    {
        "response": {"uid": _NOBODY.decode(), "allowed": True},
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
    },
    separators=(",", ":"),
).encode()


async def _answer(facts: Facts, ready: Ready, answer: Callable[[bytes], bytes]) -> None:
    cluster = await Cluster.from_kubeconfig(facts.kubeconfig, name="bench")
    certificates = Certificates(cluster, NAMESPACE, ["127.0.0.1"])
    async with running(certificates.run()):
        await certificates.wait_ready(20)

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            body = await request.read()
            return web.Response(body=answer(body), headers={"Content-Type": "application/json"})

        port = await _listen(web.Server(handle, access_log=None), certificates.ssl_context)
        await ready(Listening(port, certificates.ca_bundle.decode(), ["/echo"]))
    await cluster.close()


async def _listen(server: web.Server, context: object) -> int:
    runner = web.ServerRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context, backlog=1024)  # type: ignore[arg-type]
    await site.start()
    return int(runner.addresses[0][1])


async def _serve(kind: str) -> None:
    loop = asyncio.get_running_loop()
    facts = Facts(**json.loads(await loop.run_in_executor(None, sys.stdin.readline)))

    async def ready(listening: Listening) -> None:
        print(json.dumps(asdict(listening)), flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)

    await {"admission": admission, "echo": echo, "allow": allow}[kind](facts, ready)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sys.argv[1]))
