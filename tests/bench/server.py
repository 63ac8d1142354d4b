"""What is measured, each in a process of its own: our admission path on a real API server, and a bare echo beside it.

`python -m tests.bench.server admission|echo` reads one JSON line with what it needs, prints one with where it listens,
and serves until its standard input closes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable

import uvloop
from aiohttp import web

from common import account as accounts
from common import program, resources
from common.account import Account
from common.api import UID_LABEL
from common.kube.client import Cluster
from seed import observed
from seed.admission import Admission
from seed.books import Books
from seed.catalog import Catalog
from seed.certificates import Certificates
from seed.counting import COUNT_AT_ONCE, COUNT_DELAY, FREED_DELAY
from seed.flavours.cache import FlavourCache
from seed.flavours.settings import SettingsReader
from seed.flavours.transport import Transport
from seed.ledger.apiserver import ApiServerStore
from seed.sizing import Sizing
from seed.webhook import MachineWebhook
from seed.webhook_token import WebhookKey

NAMESPACE = "seedquota"
SOURCE = "default/bench"


async def admission(facts: dict[str, str], ready: Callable[[int, bytes, str], Awaitable[None]]) -> None:
    """The real path from the socket to the ledger in the real API server and back.

    Machines do not exist here, so the counting that a leader does from its watch cache is played: as often as it would,
    all reservations of the ledger become use, in one write like any other.
    """
    cluster = await Cluster.from_kubeconfig(facts["kubeconfig"], name="bench")
    catalog = Catalog(cluster)
    store = ApiServerStore(cluster, NAMESPACE)
    books = Books(catalog, store)
    certificates = Certificates(cluster, NAMESPACE, ["127.0.0.1"])
    tasks = [asyncio.create_task(run) for run in (catalog.run(), store.run(), certificates.run())]
    await catalog.wait_synced()
    await certificates.wait_ready(20)
    key = WebhookKey(cluster, NAMESPACE)
    sizing = Sizing(FlavourCache(Transport()), SettingsReader(cluster), key.seal, key.check_seal)
    webhook = MachineWebhook(
        catalog, Admission(catalog, books), sizing, lambda _uid, token: token == "bench", observed.decision
    )
    quota = next(iter(catalog.all_quotas()))
    book = books.get(quota)
    assert book is not None
    plenty = dict.fromkeys(quota.limits, 10**24)
    await book.writer.create(Account(incarnation="bench", master="bench", epoch=1, granted=plenty))
    counted: dict[str, int] = {}

    def count(account: Account) -> tuple[Account, None]:
        seen = dict.fromkeys(account.reservations, 0)
        used = resources.add(counted, account.reserved)
        after = accounts.count(account, 1, SOURCE, used, seen)
        counted.update(used)
        return after, None

    async def keep_counting() -> None:
        while True:
            due = time.monotonic() + COUNT_DELAY
            while time.monotonic() < due:
                await asyncio.sleep(FREED_DELAY)
                account = book.writer.account
                if account is not None and len(account.reservations) >= COUNT_AT_ONCE:
                    break
            await book.writer.change(count)

    tasks.append(asyncio.create_task(keep_counting()))
    port = await _listen(webhook.server(), certificates.ssl_context)
    uid = catalog.user_clusters.store.values()[0].metadata.uid
    gc.set_threshold(*program.GC_THRESHOLDS)  # as the program has them
    await ready(port, certificates.ca_bundle, f"/machines/{uid}/bench")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await books.close()
    await cluster.close()


async def echo(facts: dict[str, str], ready: Callable[[int, bytes, str], Awaitable[None]]) -> None:
    """As little as aiohttp can do: read the body, answer with as many bytes as an allowed review has."""
    cluster = await Cluster.from_kubeconfig(facts["kubeconfig"], name="bench")
    certificates = Certificates(cluster, NAMESPACE, ["127.0.0.1"])
    running = asyncio.create_task(certificates.run())
    await certificates.wait_ready(20)
    answer = json.dumps(
        {
            "response": {"uid": "0" * 36, "allowed": True},
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
        },
        separators=(",", ":"),
    ).encode()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        return web.Response(body=answer, headers={"Content-Type": "application/json"})

    port = await _listen(web.Server(handle, access_log=None), certificates.ssl_context)
    await ready(port, certificates.ca_bundle, "/echo")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await cluster.close()


async def _listen(server: web.Server, context: object) -> int:
    runner = web.ServerRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context, backlog=1024)  # type: ignore[arg-type]
    await site.start()
    return int(runner.addresses[0][1])


async def _serve(kind: str) -> None:
    loop = asyncio.get_running_loop()
    facts = json.loads(await loop.run_in_executor(None, sys.stdin.readline))

    async def ready(port: int, ca: bytes, path: str) -> None:
        print(json.dumps({"port": port, "ca": ca.decode(), "path": path}), flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)

    await (admission if kind == "admission" else echo)(facts, ready)


UID_OF_QUOTA = "00000000-0000-0000-0000-00000000be0c"
OBJECTS: list[dict[str, object]] = [
    {
        "apiVersion": "seedquota.io/v1alpha1",
        "kind": "ResourceQuota",
        "metadata": {"name": "bench", "labels": {UID_LABEL: UID_OF_QUOTA}},
        "spec": {"subject": {"kind": "project", "name": "bench"}, "quota": {"cpu": "1G", "memory": "1Ei"}},
    },
    {
        "apiVersion": "seedquota.io/v1alpha1",
        "kind": "UserCluster",
        "metadata": {"name": "bench", "namespace": "default"},
        "spec": {"project": "bench"},
    },
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
]


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sys.argv[1]))
