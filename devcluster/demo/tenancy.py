"""The last act of the demo: nodes, pods and servers of two projects under one organization."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from devcluster.demo.screen import Screen
from devcluster.install import GROUP_PATH, Installation
from devcluster.manifests import Manifest, apply
from devcluster.objects import named, project, quota

ORGANIZATION = "acme"
NAMESPACES = {"alpha": "web", "beta": "shop"}  # of the shared cluster, by project
OF_PROJECT, OF_ORGANIZATION = 10, 12  # pods
SERVERS = 8  # of the organization
TRIES = 100  # of one request, while nobody can decide
SECONDS = 60.0


class TenancyError(Exception):
    """Something did not happen that should have. The message is for people."""


class Tenancy:
    """`tell()` it after the story: the project's quota is there, and limits its Machines. The installation has a seed
    in the master's cluster, and serves the HTTP API."""

    def __init__(self, installed: Installation, screen: Screen, quota_name: str) -> None:
        self._installed = installed
        self._screen = screen
        self._quota = quota_name
        self._shared = list(installed.user_clusters.values())[-1]

    async def tell(self) -> None:
        """Raises TenancyError and what HTTP raises."""
        self._screen.step("Nodes, pods and servers of two projects, under one organization")
        async with (
            self._installed.master.session() as self._master,
            self._installed.cluster(self._shared).session() as self._cluster,
            aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {self._installed.master.tokens['admin']}"},
                connector=aiohttp.TCPConnector(ssl=False),
            ) as self._api,
        ):
            await self._limit()
            pods, servers = await asyncio.gather(self._pods(), self._servers())
            self._judge(pods, servers)
            await self._dashboard()

    async def _limit(self) -> None:
        self._screen.say(
            f"{self._shared} is shared from now on: its namespaces are of the projects that their labels name. A "
            "service of the platform allocates servers."
        )
        limits = {"pods": str(OF_PROJECT), "servers": str(SERVERS)}
        organization = {"pods": str(OF_ORGANIZATION), "servers": str(SERVERS), "machines": "1000"}
        catalogue = [{"name": "servers", "displayName": "Servers", "countFrom": "Allocations"}]
        await apply(
            self._installed.master,
            [
                named("QuotaSettings", "default", resources=catalogue),
                project("beta", ORGANIZATION),
                quota(f"org-{ORGANIZATION}", ORGANIZATION, organization, kind="organization"),
                quota("project-beta", "beta", limits),
            ],
        )
        patch = {"spec": {"quota": limits}}
        await _ask(self._master.patch(f"{GROUP_PATH}/resourcequotas/{self._quota}", json=patch, headers=MERGE))
        self._screen.quote(
            f"kubectl patch seedquota {self._quota} --type=merge -p '{msgspec.json.encode(patch).decode()}'"
        )
        self._screen.quote(f"org-{ORGANIZATION}: {', '.join(f'{name} {most}' for name, most in organization.items())}")
        await self._share()
        for name in (self._quota, "project-beta", f"org-{ORGANIZATION}"):
            await self._installed.enforced(name, SECONDS)

    async def _share(self) -> None:
        for seed, cluster in self._installed.user_clusters.items():
            spec = {"namespaceQuotas": "Enabled"}
            if cluster == self._shared:
                spec["namespaceProjects"] = "FromLabel"
            path = f"{GROUP_PATH}/namespaces/{self._installed.project}/userclusters/{cluster}"
            async with self._installed.cluster(seed).session() as session:
                await _ask(session.patch(path, json={"spec": spec}, headers=MERGE))
        for of, name in NAMESPACES.items():
            account: Manifest = {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": name},
            }
            labels = {"seedquota.io/project": of}
            namespace: Manifest = {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": labels},
            }
            await apply(self._installed.cluster(self._shared), [namespace, account])

    async def _pods(self) -> Counter[str]:
        """By namespace, as the API server lists them after both projects have asked for all that they may have."""
        asked = [self._pod(name) for name in NAMESPACES.values() for _ in range(OF_PROJECT)]
        refusals = [text for text in await asyncio.gather(*asked) if text]
        self._screen.say(f"Both projects create {OF_PROJECT} pods at once. What one of the refused was told:")
        self._screen.say(next(iter(refusals), "nothing was refused"))
        found: Counter[str] = Counter()
        for name in NAMESPACES.values():
            await self._fill(name)
        for name in NAMESPACES.values():
            found[name] = len((await _ask(self._cluster.get(f"/api/v1/namespaces/{name}/pods")))["items"])
        return found

    async def _fill(self, namespace: str) -> None:
        """What is refused by one quota is reserved in the other for a moment: so it is full only if it stays full."""
        refused = 0
        while refused < 3:
            refused = refused + 1 if await self._pod(namespace) else 0
            await asyncio.sleep(0.1)

    async def _pod(self, namespace: str) -> str:
        """What it is refused with; empty if it is admitted."""
        body = {"metadata": {"generateName": "pod-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        for _ in range(TRIES):
            async with self._cluster.post(f"/api/v1/namespaces/{namespace}/pods", json=body) as answer:
                found = await answer.json()
            if answer.status in (201, 403):
                return "" if answer.status == 201 else str(found["message"])
            await asyncio.sleep(0.1)
        raise TenancyError(f"whether a pod may be created is not decided: {found['message']}")

    async def _servers(self) -> int:
        """How many are allocated, after services have asked for more than there are."""
        answers = await asyncio.gather(*(self._allocate(of, number) for number in range(SERVERS) for of in NAMESPACES))
        return sum(answers)

    async def _allocate(self, of: str, number: int) -> int:
        url = f"{self._installed.api_url}/api/v1/organizations/{ORGANIZATION}/projects/{of}/allocations"
        taken = {"type": "servers", "committed": 1 - number % 2, "reserved": number % 2}
        body = {"spec": {"kind": "server", "id": f"{of}-{number}", "resources": [taken]}}
        for _ in range(TRIES):
            async with self._api.post(url, json=body) as answer:
                text = await answer.text()
            if answer.status in (200, 201, 409):
                return int(answer.status != 409)
            await asyncio.sleep(0.1)
        raise TenancyError(f"whether a server may be allocated is not decided: {text}")

    def _judge(self, pods: Counter[str], servers: int) -> None:
        shown = ", ".join(f"{number} in {name}" for name, number in pods.items())
        self._screen.say(
            f"{pods.total()} pods of {OF_ORGANIZATION} exist ({shown}; at most {OF_PROJECT} each), and {servers} "
            f"servers of {SERVERS} are allocated."
        )
        if pods.total() != OF_ORGANIZATION or max(pods.values()) > OF_PROJECT or servers != SERVERS:
            raise TenancyError(f"{OF_ORGANIZATION} pods and {SERVERS} servers should have been admitted")

    async def _dashboard(self) -> None:
        """What a dashboard of the organization shows: the numbers of one route of the HTTP API."""
        path = f"/api/v1/organizations/{ORGANIZATION}/quotas"
        for _ in range(TRIES):
            found = await _ask(self._api.get(f"{self._installed.api_url}{path}"))
            rows = _rows(found)
            used = {row[0]: row[2] for row in rows}
            if (used.get("pods"), used.get("servers")) == (str(OF_ORGANIZATION), str(SERVERS)):
                break
            await asyncio.sleep(0.1)
        else:
            raise TenancyError(f"the organization shows {used}")
        self._screen.say(f"The dashboard of {ORGANIZATION}, in the same minute, from GET {path}:")
        self._screen.table([["", "capacity", "allocated", "committed", "held for scaling", "free"], *rows])


MERGE = {"Content-Type": "application/merge-patch+json"}


def _rows(found: Any) -> Sequence[Sequence[str]]:
    capacity, free = ({each["type"]: each["amount"] for each in found[name]} for name in ("capacity", "free"))
    return [
        [
            each["type"],
            str(capacity.get(each["type"], "")),
            *(str(each[name]) for name in ("amount", "committed", "reserved")),
            str(free.get(each["type"], "")),
        ]
        for each in found["allocated"]
    ]


async def _ask(asked: Any) -> Any:
    """The body. Raises TenancyError."""
    async with asked as answer:
        text = await answer.text()
    if answer.status >= 300:
        raise TenancyError(f"{answer.status}: {text}")
    return msgspec.json.decode(text)
