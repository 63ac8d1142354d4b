"""Tenants who create and delete pods in many namespaces, whose labels move, and who divide their share by core
ResourceQuotas."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping
from typing import TextIO

import msgspec

from devcluster.controlplane import ApiServer
from tests.chaos.load import JSON, MERGE, Actions, Answer, Clients
from tests.chaos.namespaces import (
    ANN,
    BOB,
    CAT,
    Membership,
    NamespaceHoldings,
    NamespaceQuota,
    body,
    decoder_of,
    size_of_quota,
)
from tests.chaos.quotas import HOSTS, key

_THINK_SECONDS = 0.2  # on average
_RETRY_SECONDS = 1.0
_numbers = itertools.count(1)


class NamespaceLoad(Clients):
    """Runs until cancelled; then `end` it."""

    def __init__(
        self,
        chance: random.Random,
        servers: list[ApiServer],
        holdings: Mapping[str, NamespaceHoldings],
        membership: Membership,
        log: TextIO,
    ) -> None:
        super().__init__(chance, servers, log)
        self._holdings = holdings
        self._membership = membership

    async def _client(self) -> None:
        actions: Actions = {
            self.make_pod: 45,
            self.delete_pod: 25,
            self.make_quota: 10,
            self.change_quota: 12,
            self.delete_quota: 5,
            self.move: 2,
        }
        await self._act(actions, lambda _: self._chance.choice(list(HOSTS)), _THINK_SECONDS)

    async def make_pod(self, cluster: str) -> Answer:
        return await self._create(cluster, self._chance.choice((ANN, ANN, BOB)), self._chance.choice("1112"))

    async def delete_pod(self, cluster: str) -> Answer | None:
        return await self._delete(cluster, self._chance.choice((ANN, ANN, BOB)))

    async def make_quota(self, cluster: str) -> Answer:
        return await self._create(cluster, CAT, str(self._chance.randint(1, 12)))

    async def delete_quota(self, cluster: str) -> Answer | None:
        return await self._delete(cluster, CAT)

    async def change_quota(self, cluster: str) -> Answer | None:
        """Raises or lowers it."""
        held = self._holdings[key(CAT.name, cluster)]
        if not (name := self._one_of(held)):
            return None
        cpu = str(self._chance.randint(1, 12))
        size, path = size_of_quota(cpu), f"{CAT.path(held.namespace_of(name))}/{name}"
        held.updating(name, size)
        patch = msgspec.json.encode({"spec": {"hard": {"requests.cpu": cpu}}})
        answer = self._seen(held, await self._ask(cluster, "PATCH", path, patch, MERGE))
        if answer.status in (200, 403, 404, 409):
            held.answered(name, size)
        self._note(cluster, "update", name, cpu, answer)
        return answer

    async def move(self, cluster: str) -> Answer:
        """A namespace comes in or leaves, with all that it has."""
        return await self._label(cluster, self._chance.choice(BOB.namespaces), inside=self._chance.random() < 0.6)

    async def end(self) -> None:
        """All namespaces that moved are in, and their owners have deleted what is too much."""
        held = {cluster: self._holdings[key(BOB.name, cluster)] for cluster in HOSTS}
        for cluster in HOSTS:
            for namespace in BOB.namespaces:
                while (await self._label(cluster, namespace, inside=True)).status != 200:
                    await asyncio.sleep(_RETRY_SECONDS)
        left = int(BOB.quota["pods"])
        for cluster in HOSTS:
            for namespace in BOB.namespaces:
                left = await self._keep(cluster, held[cluster], namespace, left)

    async def _keep(self, cluster: str, held: NamespaceHoldings, namespace: str, most: int) -> int:
        """Deletes what is more than that. Returns what is left of it."""
        path = BOB.path(namespace)
        while True:
            answer = await self._ask(cluster, "GET", path, None, {})
            if answer.status == 200:
                names = [item["metadata"]["name"] for item in msgspec.json.decode(answer.body)["items"]]
                if len(names) <= most:
                    return most - len(names)
                for name in names[most:]:
                    held.deleting(name)
                    await self._ask(cluster, "DELETE", f"{path}/{name}?gracePeriodSeconds=0", None, {})
            await asyncio.sleep(_RETRY_SECONDS)

    async def _label(self, cluster: str, namespace: str, *, inside: bool) -> Answer:
        held = self._holdings[key(BOB.name, cluster)]
        if not inside:
            self._membership.leaves(cluster, namespace)
            held.look()
        labels = {name: value if inside else None for name, value in BOB.labels.items()}
        patch = msgspec.json.encode({"metadata": {"labels": labels}})
        answer = await self._ask(cluster, "PATCH", f"/api/v1/namespaces/{namespace}", patch, MERGE)
        if inside and answer.status == 200:
            self._membership.enters(cluster, namespace)
        elif inside:
            self._membership.leaves(cluster, namespace)  # nobody knows
        held.look()
        self._write(cluster, "label" if inside else "unlabel", namespace, "", answer)
        return answer

    async def _create(self, cluster: str, quota: NamespaceQuota, cpu: str) -> Answer:
        name, namespace = f"n-{next(_numbers)}", self._chance.choice(quota.namespaces)
        self._membership.sends(name)
        wanted = msgspec.json.encode(body(quota, name, cpu))
        answer = await self._ask(cluster, "POST", quota.path(namespace), wanted, JSON)
        self._seen(self._holdings[key(quota.name, cluster)], answer)
        self._note(cluster, f"create in {namespace}", name, cpu, answer)
        return answer

    async def _delete(self, cluster: str, quota: NamespaceQuota) -> Answer | None:
        held = self._holdings[key(quota.name, cluster)]
        if not (name := self._one_of(held)):
            return None
        path = f"{quota.path(held.namespace_of(name))}/{name}?gracePeriodSeconds=0"
        held.deleting(name)
        answer = await self._ask(cluster, "DELETE", path, None, {})
        self._write(cluster, "delete", name, "", answer)
        return answer

    def _one_of(self, held: NamespaceHoldings) -> str:
        names = held.names()
        return self._chance.choice(names) if names else ""

    def _seen(self, held: NamespaceHoldings, answer: Answer) -> Answer:
        if answer.status in (200, 201):
            held.seen(decoder_of(held.quota).decode(answer.body))
        return answer
