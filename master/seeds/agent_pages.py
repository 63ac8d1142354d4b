"""What the agents of the seeds know, and nobody else does: decisions, what each namespace uses, and sizes of machines.

Any replica asks, with the kubeconfig of the Seed, as `seedquota explain` does with that of a user. On the seed this
needs the rights of charts/rbac/explain.yaml, which nobody has by default. What a seed answers is only shown, to whoever
may see it: it decides nothing here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from common.api.types import Seed
from common.kube.client.api_client import Cluster, RequestHook
from common.kube.client.errors import ApiError, Forbidden
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.runtime.unexpected import contained
from common.server.access_reviews import may
from common.server.agents import Agents, agents_token, running_pods
from common.server.fair_queue import FairPlaces
from master.cache.informers import Caches
from master.seeds.kubeconfig_secret import seed_kubeconfig, token_in

MAX_SEEDS = 64  # asked for one decision; of more, one has to be named
AT_A_TIME = 4  # questions of all users, who take turns ...
SEEDS_AT_A_TIME = 16  # ... and seeds of one question
MAX_AGENTS = 16  # of one seed
TIMEOUT = 5.0  # seconds, for each request to a seed
SEED_SECONDS = 8.0
LEAST_SECONDS = 0.1  # with less time left, a seed is not asked
ALL_SECONDS = 12.0  # for one question to all seeds: a user's request has 15 s (master/apiserver/app.py)
MAX_ANSWER = 256 * 1024  # bytes; a decision of one that is not refused by many quotas has some hundred

NO_RIGHT = "the master may not ask the agents there"
NO_TIME = "other seeds did not answer, and no time was left to ask this one"


Ask = Callable[[str, Cluster], Awaitable[None]]
"""What is asked of a seed, by its name and a connection. Raises ApiError."""


@dataclass
class Found:
    """Each answer with its seed. `nothing`: seeds with an agent that has nothing there. `not_asked`: seeds that could
    not be asked, or not all of their agents, and why."""

    answers: list[tuple[str, bytes]] = field(default_factory=list)
    nothing: set[str] = field(default_factory=set)
    not_asked: dict[str, str] = field(default_factory=dict)


class AgentPages:
    def __init__(self, caches: Caches, namespace: str, on_request: RequestHook | None = None) -> None:
        self._caches = caches
        self._namespace = namespace
        self._on_request = on_request
        self._places = FairPlaces(AT_A_TIME)

    async def find(
        self, asked: Sequence[tuple[Seed, str]], user: str, question: bytes | None = None, *, again: bool = False
    ) -> Found:
        """What the agents of each seed have at its path, or answer to a question. `user`: for whom. `again`: it is
        asked all the time, and not where an API server would refuse it each time. It ends by itself."""
        found, paths = Found(), {seed.metadata.name: path for seed, path in asked}

        async def ask(seed: str, cluster: Cluster) -> None:
            if again and not await may(cluster, _list_pods(self._namespace_of(cluster))):
                found.not_asked[seed] = NO_RIGHT
                return
            await self._ask(seed, cluster, paths[seed], question, found)

        found.not_asked |= await self.on_each([seed for seed, _ in asked], user, ask)
        return found

    async def on_each(self, seeds: Sequence[Seed], user: str, ask: Ask, no_right: str = NO_RIGHT) -> dict[str, str]:
        """Why which of them could not be asked; `no_right`: where the API server refuses it. `user`: for whom. It ends
        by itself. Seeds that the master is not connected to come last: they may keep others waiting."""
        failed: dict[str, str] = {}
        some = asyncio.Semaphore(SEEDS_AT_A_TIME)

        async def one(seed: Seed, until: float) -> None:
            name = seed.metadata.name
            async with some:
                left = until - time.monotonic()
                if left < LEAST_SECONDS:
                    failed[name] = NO_TIME
                    return
                with contained("agents of seeds", name) as attempt:
                    failed.update(await self._on_one(seed, ask, no_right, min(left, SEED_SECONDS)))
                if attempt.failed:
                    failed[name] = "asking it failed because of an unexpected error: see the log of seedquota-master"

        await self._places.take(user)
        try:
            async with asyncio.TaskGroup() as group:
                until = time.monotonic() + ALL_SECONDS
                for seed in sorted(seeds, key=is_away):
                    group.create_task(one(seed, until))
        finally:
            self._places.give_back()
        return failed

    async def _on_one(self, seed: Seed, ask: Ask, no_right: str, seconds: float) -> dict[str, str]:
        name = seed.metadata.name
        try:
            async with asyncio.timeout(seconds):
                cluster = await self._connection(seed)
                try:
                    await ask(name, cluster)
                finally:
                    await cluster.close()
        except TimeoutError:
            return {name: "it does not answer"}
        except InvalidKubeconfig as error:
            return {name: str(error)}
        except ApiError as error:
            return {name: no_right if isinstance(error, Forbidden) else error.message}
        return {}

    async def _ask(self, name: str, cluster: Cluster, path: str, question: bytes | None, found: Found) -> None:
        """Raises ApiError."""
        namespace = self._namespace_of(cluster)
        pods = await running_pods(cluster, namespace)
        agents = Agents(cluster, namespace, pods[:MAX_AGENTS], await agents_token(cluster, namespace, TIMEOUT))
        answers = await agents.ask(path, timeout=TIMEOUT, max_answer=MAX_ANSWER, question=question)
        found.answers += [(name, answer.content) for answer in answers if answer.content is not None]
        if any(answer.content is None and not answer.problem for answer in answers):
            found.nothing.add(name)
        problems = [f"{answer.agent}: {answer.problem}" for answer in answers if answer.problem]
        if not pods:
            problems = [f"no agent runs in its namespace {namespace}"]
        if problems:
            found.not_asked[name] = "; ".join(problems)

    async def _connection(self, seed: Seed) -> Cluster:
        """Raises InvalidKubeconfig."""
        name = seed.metadata.name
        if seed.spec.in_cluster:
            return Cluster(self._caches.cluster.access, name=name, timeout=TIMEOUT, on_request=self._on_request)
        ref = seed.spec.kubeconfig_secret_ref
        secret = self._caches.secrets.store.get(f"{self._namespace}/{ref.name}") if ref is not None else None
        found = seed_kubeconfig(seed, secret, self._namespace)
        if found.problem:
            raise InvalidKubeconfig(found.problem)
        return await Cluster.from_kubeconfig(found.text, name=name, timeout=TIMEOUT, on_request=self._on_request)

    def _namespace_of(self, cluster: Cluster) -> str:
        """The ServiceAccount of the master is in that of the seed's release."""
        _, token = token_in(cluster)
        return token.namespace if token is not None else self._namespace


def _list_pods(namespace: str) -> dict[str, object]:
    """With which asking begins."""
    return {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": namespace}}


def is_away(seed: Seed) -> bool:
    """The master does not reach it, as far as is known."""
    return any(each.type == "Connected" and each.status == "False" for each in seed.status.conditions)
