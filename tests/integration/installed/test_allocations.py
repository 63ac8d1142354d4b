"""A ResourceQuotaAllocation limits what core ResourceQuotas promise together, over namespaces and clusters."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from uuid import uuid4

import pytest

from devcluster.install import GROUP_PATH
from devcluster.objects import API
from tests.integration.installed.site import PROJECT, Answer, Json, Site, until
from tests.integration.installed.test_namespaces import Clusters, clusters, taking_part

__all__ = ["clusters", "taking_part"]

pytestmark = pytest.mark.integration

LIMIT = 40
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
NAMESPACES = 10  # of each owner
TRIES = 15  # of each owner at once
SQA = ["Name", "Allocated", "Namespaces", "Ready"]
BUSY = {409, 503}  # an API server or the webhook asks to try again


def allocation(name: str, owner: str, pods: int) -> Json:
    spec = {"selector": {"matchLabels": {"owner": owner}}, "allocation": {"hard": {"pods": str(pods)}}}
    return {"apiVersion": API, "kind": "ResourceQuotaAllocation", "metadata": {"name": name}, "spec": spec}


def shown_in(place: tuple[str, str]) -> str:
    return f"namespaces/{place[1]}/localresourcequotaallocations"


class Promised:
    """The ResourceQuotas of one owner, in one cluster each."""

    def __init__(self, site: Site, clusters: Clusters, owner: str) -> None:
        self.site = site
        self.clusters = clusters
        self.owner = owner
        self.places = [(f"user-{number % 2 + 1}", f"{owner}-{number}") for number in range(2 * NAMESPACES)]

    async def begin(self) -> None:
        for cluster, name in self.places:
            path = f"/api/v1/namespaces/{name}"
            body = {"metadata": {"name": name, "labels": {"owner": self.owner}}}
            assert (await self.site.call(cluster, "POST", "/api/v1/namespaces", body)).status == 201
            self.clusters.made.append((cluster, path))

    async def put(self, place: tuple[str, str], name: str, pods: int) -> Answer:
        cluster, namespace = place
        path = f"/api/v1/namespaces/{namespace}/resourcequotas"
        body = {"metadata": {"name": name}, "spec": {"hard": {"pods": str(pods)}}}
        made = await self.site.call(cluster, "POST", path, body)
        if made.status != 409:
            return made
        return await self.site.call(cluster, "PATCH", f"{path}/{name}", {"spec": body["spec"]})

    async def decided(self, place: tuple[str, str], name: str, pods: int) -> Answer:
        """As every client does, which tries again after a 503."""

        async def answered() -> Answer:
            answer = await self.put(place, name, pods)
            assert answer.status not in BUSY, answer
            assert answer.status in (200, 201) or "exceeded quota: resourcequotaallocation/" in answer.message, answer
            return answer

        return await until(answered, 60)

    async def churn(self, mine: list[tuple[str, str]], chance: random.Random) -> None:
        for _ in range(TRIES):
            place, name = chance.choice(mine), chance.choice(["default", "terminating"])
            if chance.random() < 0.15:
                await self.site.delete(place[0], f"/api/v1/namespaces/{place[1]}/resourcequotas/{name}")
            else:
                await self.decided(place, name, chance.randint(0, 8))

    async def total(self) -> int:
        total = 0
        for cluster in ("user-1", "user-2"):
            largest: dict[str, int] = {}
            for found in await self.site.items(cluster, "/api/v1/resourcequotas"):
                namespace = found["metadata"]["namespace"]
                pods = int(found["spec"]["hard"].get("pods", 0))
                largest[namespace] = max(largest.get(namespace, 0), pods)
            total += sum(pods for namespace, pods in largest.items() if (cluster, namespace) in self.places)
        return total

    async def is_shown_to_tenants(self, place: tuple[str, str]) -> None:
        """In each namespace that is selected, with the totals and with what its own ResourceQuotas promise."""
        seen = await self.site.call(place[0], "GET", f"{GROUP_PATH}/{shown_in(place)}", headers=TABLE)
        columns = [column["name"] for column in seen.body["columnDefinitions"] if not column["priority"]]
        assert columns == ["Name", "Usage", "Here", "Current"]

        async def holds(place: tuple[str, str]) -> None:
            own = await largest(self.site, place)
            (found,) = await self.site.items(place[0], shown_in(place))
            assert found["metadata"]["name"] == self.owner
            status = found["status"]
            assert status["total"] == {"hard": {"pods": str(LIMIT)}, "used": {"pods": str(LIMIT)}}
            assert status["here"] == {"used": {"pods": str(own)}}
            assert status["summary"] == {"usage": f"pods {LIMIT}/{LIMIT}", "here": f"pods {own}"}
            for cluster, namespace in self.places:
                assert namespace not in str(status) and cluster not in str(status)

        for each in self.places:
            await until(partial(holds, each), 60)
            assert await self.site.items(each[0], f"namespaces/{each[1]}/localresourcequotas") == []
            answer = await self.decided(each, "not-terminating", LIMIT + 1)
            assert f"; see: kubectl get lsqa -n {each[1]}; decision " in answer.message, answer

    async def shows_nothing(self, place: tuple[str, str]) -> None:
        assert await self.site.items(place[0], shown_in(place)) == []

    async def end(self) -> None:
        for cluster, namespace in self.places:
            await self.site.delete(cluster, f"/api/v1/namespaces/{namespace}/resourcequotas")


async def test_two_owners_at_once_never_promise_more_and_the_last_unit_can_be_used(
    site: Site, clusters: Clusters
) -> None:
    """Each has ten namespaces in two clusters, with two ResourceQuotas in each: raised, lowered and deleted."""
    owner = f"ann-{uuid4().hex[:8]}"
    promised = Promised(site, clusters, owner)
    path = f"resourcequotaallocations/{owner}"
    await promised.begin()
    # It was there before the allocation, and is followed.
    before = {"metadata": {"name": "default"}, "spec": {"hard": {"pods": "5"}}}
    first = promised.places[0]
    made = await site.call(first[0], "POST", f"/api/v1/namespaces/{first[1]}/resourcequotas", before)
    assert made.status == 201, made
    await site.apply("master", allocation(owner, owner, LIMIT))
    await site.comes("master", path, "Enforced", "True", seconds=60)
    await site.comes("master", path, "NamespacesLimited", "False", "NoResourceQuota", promised.places[1][1], "pods")
    for seed in range(3):
        owners = [promised.places[:NAMESPACES], promised.places[NAMESPACES:]]
        chances = [random.Random(10 * seed + number) for number in range(4)]
        await asyncio.gather(*(promised.churn(owners[number % 2], chances[number]) for number in range(4)))
        assert await promised.total() <= LIMIT
    # All that is left can be promised, whoever asks.
    place = promised.places[-1]

    async def filled() -> None:
        there = await promised.total()
        if there < LIMIT:
            listed = await site.items(place[0], f"/api/v1/namespaces/{place[1]}/resourcequotas")
            own = max((int(each["spec"]["hard"]["pods"]) for each in listed), default=0)
            answer = await promised.decided(place, "default", own + LIMIT - there)
            assert answer.status != 403, answer
        assert await promised.total() == LIMIT

    await until(filled, 60)
    for place in promised.places:
        if own := await largest(site, place):
            break
    assert (await promised.decided(place, "best-effort", own + 1)).status == 403

    # What it says is what there is.
    async def shown() -> None:
        status = (await site.get("master", path))["status"]
        assert status["allocated"] == {"hard": {"pods": str(LIMIT)}, "used": {"pods": str(LIMIT)}}
        assert sum(int(each["used"]["pods"]) for each in status["usedByProject"]) == LIMIT
        assert status["summary"]["allocated"] == f"pods {LIMIT}/{LIMIT}"
        # Namespaces are looked at once a second.
        seen = await site.call("master", "GET", f"{GROUP_PATH}/{path}", headers=TABLE)
        assert [column["name"] for column in seen.body["columnDefinitions"]] == [*SQA, "Age"]
        promising = len([each for each in promised.places if await largest(site, each)])
        assert seen.body["rows"][0]["cells"][:4] == [owner, f"pods {LIMIT}/{LIMIT}", promising, "True"]

    await until(shown, 30)
    await promised.is_shown_to_tenants(place)
    # A namespace that leaves the selection takes its promise with it.
    await clusters.label(*place, "bob")
    await until(partial(promised.shows_nothing, place), 30)
    free = promised.places[-1] if promised.places[-1] != place else promised.places[0]

    async def moved() -> None:
        answer = await promised.decided(free, "best-effort", 1 + await largest(site, free))
        assert answer.status in (200, 201), answer

    await until(moved, 60)
    # Nobody changes or removes the quota behind it for good.
    quota = f"resourcequotas/allocation.{owner}"
    await site.patch("master", quota, {"spec": {"quota": {"pods": "1000"}}})

    async def restored(uid: str = "") -> None:
        found = await site.get("master", quota)
        assert found["spec"]["quota"] == {"pods": str(LIMIT)} and found["metadata"]["uid"] != uid

    await until(restored, 30)
    uid = (await site.get("master", quota))["metadata"]["uid"]
    await site.delete("master", quota)
    await until(partial(restored, uid), 30)
    await site.delete("master", path)

    async def gone() -> None:
        assert (await site.call("master", "GET", quota)).status == 404

    await until(gone, 30)
    for each in promised.places:
        await until(partial(promised.shows_nothing, each), 60)


async def largest(site: Site, place: tuple[str, str]) -> int:
    listed = await site.items(place[0], f"/api/v1/namespaces/{place[1]}/resourcequotas")
    return max((int(each["spec"]["hard"]["pods"]) for each in listed), default=0)


async def test_with_scopes_only_the_resource_quotas_of_these_pods_count(site: Site, clusters: Clusters) -> None:
    owner = f"lea-{uuid4().hex[:8]}"
    promised = Promised(site, clusters, owner)
    here, there = promised.places[:2]
    await promised.begin()
    body = allocation(owner, owner, 10)
    body["spec"]["allocation"]["scopes"] = ["Terminating"]
    path = f"resourcequotaallocations/{owner}"
    await site.apply("master", body)
    await site.comes("master", path, "Enforced", "True", seconds=60)

    async def asked(place: tuple[str, str], method: str, name: str, pods: int, **scopes: Json) -> Answer:
        async def answered() -> Answer:
            path = f"/api/v1/namespaces/{place[1]}/resourcequotas"
            spec = {"hard": {"pods": str(pods)}, **scopes}
            at = f"{path}/{name}" if method == "PATCH" else path
            answer = await site.call(place[0], method, at, {"metadata": {"name": name}, "spec": spec})
            assert answer.status not in BUSY, answer
            return answer

        return await until(answered, 60)

    terminating = {"scopeSelector": {"matchExpressions": [{"scopeName": "Terminating", "operator": "Exists"}]}}
    assert (await asked(here, "POST", "default", 50)).status == 201, "it limits other pods, too"
    assert (await asked(here, "POST", "terminating", 6, scopes=["Terminating"])).status == 201
    assert (await asked(there, "POST", "terminating", 5, scopes=["Terminating"])).status == 403
    assert (await asked(there, "POST", "default", 5)).status == 201
    entered = await asked(there, "PATCH", "default", 5, **terminating)
    assert (entered.status, f"exceeded quota: resourcequotaallocation/{owner}," in entered.message) == (403, True), (
        "it would get these scopes"
    )
    assert (await asked(there, "PATCH", "default", 4, **terminating)).status == 200

    async def shown() -> None:
        status = (await site.get("master", path))["status"]
        assert status["allocated"] == {"hard": {"pods": "10"}, "used": {"pods": "10"}}
        found = {each["namespace"]: (each["project"], each["used"]["pods"]) for each in status["usedByProject"]}
        assert found == {here[1]: (PROJECT, "6"), there[1]: (PROJECT, "4")}

    await until(shown, 30)
    await site.comes("master", path, "NamespacesLimited", "False", "NoResourceQuota", promised.places[2][1])
    changed = {"spec": {"allocation": {"scopes": ["BestEffort"]}}}
    refused = await site.call("master", "PATCH", f"{GROUP_PATH}/{path}", changed)
    assert (refused.status, "scopes cannot be changed" in refused.message) == (422, True), refused
    await site.delete("master", path)
    await promised.end()


async def test_what_core_still_admits_by_is_promised_to_nobody_else(site: Site, clusters: Clusters) -> None:
    """API servers admit by `status.hard`. What is lowered while kube-controller-manager does not run could be used
    there, and by whoever was promised it meanwhile, too."""
    owner, most = f"kim-{uuid4().hex[:8]}", {"configmaps": "10"}
    promised = Promised(site, clusters, owner)
    here, there = promised.places[:2]
    quotas, maps = (f"/api/v1/namespaces/{here[1]}/{plural}" for plural in ("resourcequotas", "configmaps"))
    await promised.begin()
    spec = {"selector": {"matchLabels": {"owner": owner}}, "allocation": {"hard": most}}
    path = f"resourcequotaallocations/{owner}"
    await site.apply(
        "master", {"apiVersion": API, "kind": "ResourceQuotaAllocation", "metadata": {"name": owner}, "spec": spec}
    )
    await site.comes("master", path, "Enforced", "True", seconds=60)

    async def asked(place: tuple[str, str]) -> Answer:
        async def answered() -> Answer:
            body = {"metadata": {"name": "default"}, "spec": {"hard": most}}
            answer = await site.call(place[0], "POST", f"/api/v1/namespaces/{place[1]}/resourcequotas", body)
            assert answer.status not in BUSY, answer
            return answer

        return await until(answered, 60)

    async def admits(hard: str) -> None:
        found = await site.call(here[0], "GET", f"{quotas}/default")
        assert found.body["status"]["hard"]["configmaps"] == hard

    manager = await site.installed._plane.controllers(here[0], "resourcequota-controller")
    try:
        assert (await asked(here)).status == 201
        await until(partial(admits, "10"), 60)
    finally:
        await manager.stop()
    lowered = await site.call(here[0], "PATCH", f"{quotas}/default", {"spec": {"hard": {"configmaps": "0"}}})
    assert lowered.status == 200, lowered
    for _ in range(20):  # the leader has counted it long since
        answer = await asked(there)
        assert (answer.status, "exceeded quota: resourcequotaallocation/" in answer.message) == (403, True), answer
        await asyncio.sleep(0.2)
    made = [await site.call(here[0], "POST", maps, {"metadata": {"name": f"m{number}"}}) for number in range(11)]
    assert [each.status for each in made] == [201] * 10 + [403], "core admits by the status"
    await site.delete(here[0], maps)
    manager = await site.installed._plane.controllers(here[0], "resourcequota-controller")
    try:
        await until(partial(admits, "0"), 60)

        async def free() -> None:
            answer = await asked(there)
            assert answer.status == 201, answer

        await until(free, 60)
    finally:
        await manager.stop()
    await site.delete("master", path)
    await promised.end()
