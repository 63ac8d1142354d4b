"""Pods per second through a real API server: without a quota, with core's, behind a bare webhook, and behind ours.

Ours are a quota of kind namespaces, a quota of the namespaces' project, and that with a quota of its organization. They
are in force together, each for namespaces of its own, and are measured in turn. All lines are of one run against one
user cluster of an installation. Each line has namespaces of its own, which are emptied after it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median

import aiohttp

from common.api.labels import PROJECT_LABEL
from devcluster import manifests
from devcluster.controlplane import ApiServer
from devcluster.install import GROUP_PATH
from devcluster.objects import named, namespace, project
from devcluster.observe import api_writes
from tests.bench.installed import Site, site
from tests.bench.load import Result, Task, in_process
from tests.bench.plot import Ratios
from tests.bench.server import NAMESPACE
from tests.bench.serving import Served, cpu_seconds, serving, tell

CLIENTS = 48
MANY = 100  # namespaces
LABEL = "bench.seedquota.io/quota"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
BARE = "bench-bare"
LIMIT = "1000000"
ORGANIZATION = "bench"
PROJECTS = {"project": "alone", "both": "in-bench"}  # whose the namespaces of these lines are
OURS: Mapping[str, Mapping[str, manifests.Manifest]] = {  # of each line, by name: whose pods the quota limits
    "selector": {"selected": {"kind": "namespaces", "selector": {"matchLabels": {LABEL: "selector"}}}},
    "project": {"alone": {"kind": "project", "name": PROJECTS["project"]}},
    "both": {
        "in-bench": {"kind": "project", "name": PROJECTS["both"]},
        "all-of-bench": {"kind": "organization", "name": ORGANIZATION},
    },
}
TURNS = 2 * [*OURS, *reversed(OURS)]  # of one kind, a line differs from the next by more than kinds do
EMPTY_AT_ONCE = 4  # namespaces
TAKES_UP = 3.0  # seconds until an API server has a webhook configuration, or has forgotten it

_POD = {
    "metadata": {"generateName": "p-"},
    "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1m"}}}]},
}
_runs = itertools.count(1)


@dataclass(frozen=True)
class Bench:
    site: Site
    server: ApiServer  # the user cluster's
    session: aiohttp.ClientSession
    seconds: float


async def pods(seconds: float) -> Ratios:
    ratios = []
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(site({"cpu": LIMIT}, seeds=1))
        [name] = found.installed.user_clusters.values()
        server = found.installed.cluster(name)
        session = await stack.enter_async_context(server.session())
        bench = Bench(found, server, session, seconds)
        await manifests.apply(server, [namespace(NAMESPACE)])
        owners = [project(PROJECTS["project"]), project(PROJECTS["both"], ORGANIZATION)]
        await manifests.apply(found.installed.master, [named("Organization", ORGANIZATION), *owners])
        bare = await stack.enter_async_context(serving("allow", server))
        print(f"pods created through a real API server, {CLIENTS} clients")
        print("CPU per pod in us: of its API server, of the webhook, and of the other API servers, etcd and programs")
        of_pods = "pods/s   p50 ms   p99 ms  API server  webhook  others  other writes"
        print(f" namespaces  quota       {of_pods}")
        for count in (1, MANY):
            await _line(bench, count, "none", [])
            await _line(bench, count, "core", [], core=True)
            async with _bare_webhook(bench, bare):
                of_bare = await _line(bench, count, "bare", [bare.pid])
            async with _ours(bench):
                agent = found.installed.programs["seedquota-seed-1"].pid
                rates: dict[str, list[float]] = {kind: [] for kind in OURS}
                for kind in TURNS:
                    rates[kind].append(await _line(bench, count, kind, [agent]))
            for kind in OURS:
                rate, of_selector = median(rates[kind]), median(rates["selector"])
                print(f"{count:>11}  {kind:<8} to bare {rate / of_bare:.2f}, to selector {rate / of_selector:.2f}")
                ratios.append((f"namespaces: {count}, {kind}", rate / of_bare))
    return Ratios("Pods a second, to a bare TLS webhook that allows everything", ratios)


async def _line(bench: Bench, count: int, kind: str, webhook: Sequence[int], *, core: bool = False) -> float:
    """Pods per second."""
    names = [f"{kind}-{next(_runs)}-{number}" for number in range(count)]
    labels = {LABEL: kind} | ({PROJECT_LABEL: PROJECTS[kind]} if kind in PROJECTS else {})
    await manifests.apply(bench.server, [_labelled(name, labels) for name in names])
    await manifests.apply(bench.server, [_account(name) for name in names])
    if core:
        await asyncio.gather(*(_core_quota(bench, name) for name in names))
    await _load(bench, names, 0.5)
    servers = bench.site.installed.clusters()
    before, writes = _cpu(bench, webhook), await api_writes(servers)
    result = await _load(bench, names, bench.seconds)
    after, written = _cpu(bench, webhook), await api_writes(servers)
    made = max(result.allowed, 1)
    others = sum((written - writes).values()) - written[bench.server.name, "POST", "pods"]
    others += writes[bench.server.name, "POST", "pods"]
    spent = [(late - early) / made * 1e6 for early, late in zip(before, after, strict=True)]
    print(
        f"{count:>11}  {kind:<8} {result.allowed / result.seconds:>9.0f} {result.p50_ms:>8.1f} {result.p99_ms:>8.1f}"
        f" {spent[0]:>11.0f} {spent[1]:>8.0f} {spent[2]:>7.0f} {others / made:>13.2f}",
        flush=True,
    )
    tell(result)
    await _empty(bench, names)
    return result.allowed / result.seconds


async def _load(bench: Bench, names: Sequence[str], seconds: float) -> Result:
    paths = [f"/api/v1/namespaces/{name}/pods" for name in names]
    port = int(bench.server.url.rpartition(":")[2])
    return await in_process(
        Task(
            targets=[(port, path) for path in paths],
            ca=bench.server.ca,
            body=json.dumps(_POD),
            clients=CLIENTS,
            seconds=seconds,
            token=bench.server.tokens["admin"],
        )
    )


def _cpu(bench: Bench, webhook: Sequence[int]) -> tuple[float, float, float]:
    installed = bench.site.installed
    others = {server.pid for server in [*installed.clusters(), installed.etcd_of(bench.server.name)]}
    others |= {program.pid for program in installed.programs.values()}
    others -= {bench.server.pid, *webhook}
    return cpu_seconds(bench.server.pid), sum(map(cpu_seconds, webhook)), sum(map(cpu_seconds, others))


def _labelled(name: str, labels: dict[str, str]) -> manifests.Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _account(name: str) -> manifests.Manifest:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}


async def _core_quota(bench: Bench, name: str) -> None:
    """In force: no controller runs that would write its status, and admission needs nothing else of it."""
    path, hard = f"/api/v1/namespaces/{name}/resourcequotas", {"pods": LIMIT}
    body = {"metadata": {"name": "core"}, "spec": {"hard": hard}}
    async with bench.session.post(path, json=body, raise_for_status=True) as answer:
        made = await answer.json()
    made["status"] = {"hard": hard, "used": {"pods": "0"}}
    async with bench.session.put(f"{path}/core/status", json=made, raise_for_status=True):
        pass


async def _empty(bench: Bench, names: Sequence[str]) -> None:
    places = asyncio.Semaphore(EMPTY_AT_ONCE)

    async def one(name: str) -> None:
        async with places:
            path = f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0"
            for _ in range(20):
                try:
                    async with bench.session.delete(path) as answer:
                        if answer.status == 200:
                            return
                except TimeoutError:
                    continue

    await asyncio.gather(*(one(name) for name in names))


@asynccontextmanager
async def _bare_webhook(bench: Bench, bare: Served) -> AsyncIterator[None]:
    [path] = bare.paths
    webhook = {
        "name": "bare.seedquota.io",
        "clientConfig": {"url": f"https://127.0.0.1:{bare.port}{path}", "caBundle": bare.ca_bundle},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {LABEL: "bare"}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 3,
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    await manifests.apply(bench.server, [{**kind, "metadata": {"name": BARE}, "webhooks": [webhook]}])
    await asyncio.sleep(TAKES_UP)
    yield
    async with bench.session.delete(f"{CONFIGURATIONS}/{BARE}", raise_for_status=True):
        pass
    await asyncio.sleep(TAKES_UP)


@asynccontextmanager
async def _ours(bench: Bench) -> AsyncIterator[None]:
    """Our quotas in force, in a cluster whose namespaces are of the projects that their labels name."""
    installed = bench.site.installed
    [(seed, name)] = installed.user_clusters.items()
    path = f"{GROUP_PATH}/namespaces/{installed.project}/userclusters/{name}"
    takes_part = {"namespaceQuotas": "Enabled", "namespaceProjects": "FromLabel"}
    await _patch(installed.cluster(seed), path, {"spec": takes_part})
    subjects = {each: whose for quotas in OURS.values() for each, whose in quotas.items()}
    quotas = [named("ResourceQuota", each, subject=whose, quota={"pods": LIMIT}) for each, whose in subjects.items()]
    await manifests.apply(installed.master, quotas)
    for each in subjects:
        await installed.enforced(each)
    yield
    async with installed.master.session() as session:
        for each in subjects:
            async with session.delete(f"{GROUP_PATH}/resourcequotas/{each}", raise_for_status=True):
                pass
    await _patch(installed.cluster(seed), path, {"spec": {"namespaceQuotas": "Disabled"}})
    await asyncio.sleep(TAKES_UP)


async def _patch(server: ApiServer, path: str, body: object) -> None:
    headers = {"Content-Type": "application/merge-patch+json"}
    async with (
        server.session() as session,
        session.patch(path, data=json.dumps(body), headers=headers, raise_for_status=True),
    ):
        pass
