"""The Secret with the kubeconfig of a UserCluster: each kubeconfig that it brings is connected to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from common.api.core import SECRETS, Secret
from common.api.types import SecretRef, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import InvalidKubeconfig, NotReadYet
from common.kube.client.reach import Reach
from common.kube.client.resource import by_name
from common.kube.controller.reflector import Reflector
from common.runtime.unexpected import contained
from common.runtime.waiting import end_task, within
from seed.kinds.machines.machine_api import MachineApi
from seed.usage.source import Problem, reason_of

LIST_SECONDS = 10.0  # after which it is said that the Secret cannot be read
READ_AGAIN = 30.0  # seconds, where a kubeconfig could not be read in time
INTERNAL = Problem("Unreachable", "following it failed because of an unexpected error: see the log of seedquota-seed")


class KubeconfigSecret:
    """`on_problem` is told why the Secret cannot be used, and None when it can. A connection that works goes on
    meanwhile."""

    def __init__(
        self,
        seed: Cluster,
        user_cluster: UserCluster,
        reference: SecretRef,
        *,
        reach: Reach,
        on_problem: Callable[[Problem | None], None],
    ) -> None:
        self._seed = seed
        self._cluster = user_cluster.metadata.key
        self._namespace, self._name, self._key = user_cluster.metadata.namespace, reference.name, reference.key
        self._reach = reach
        self._on_problem = on_problem
        self._used = ""  # the kubeconfig of the connection
        self._changed = asyncio.Event()

    @property
    def where(self) -> str:
        return f"secret {self._namespace}/{self._name}, key {self._key}"

    def connect_again(self) -> None:
        """Ends the connection and makes it anew."""
        self._used = ""
        self._changed.set()

    async def run(self, follow: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
        """Until cancelled. `follow` has one connection after the other, and is cancelled where the next begins."""
        secret = Reflector(
            self._seed,
            SECRETS,
            namespace=self._namespace,
            field_selector=by_name(self._name),
            on_change=lambda _change: self._changed.set(),
        )
        watching = asyncio.create_task(secret.run(), name=f"secret of {self._cluster}")
        following: asyncio.Task[None] | None = None
        try:
            await self._listed(secret)
            while True:
                self._changed.clear()
                kubeconfig = self._read(secret)
                if kubeconfig is not None and kubeconfig != self._used:
                    cluster = await self._open(kubeconfig)
                    if cluster is not None:
                        await end_task(following)
                        self._used = kubeconfig
                        following = asyncio.create_task(follow(cluster), name=f"connection to {self._cluster}")
                elif kubeconfig is not None:
                    self._on_problem(None)
                await self._changed.wait()
        finally:
            await end_task(following)
            await end_task(watching)

    async def _listed(self, secret: Reflector[Secret]) -> None:
        while not await within(secret.synced, LIST_SECONDS):
            message = f"{self.where}: cannot be read: {secret.error or 'no answer yet'}"
            if secret.error_status == 403:
                message += "; bind the role of charts/rbac/seed-namespace.yaml in that namespace"
            self._on_problem(Problem(reason_of(secret.error_status), message))

    def _read(self, secrets: Reflector[Secret]) -> str | None:
        """The kubeconfig's text, or None with the problem told."""
        name = f"{self._namespace}/{self._name}"
        secret = secrets.store.get(name)
        if secret is None:
            problem = f"secret {name} does not exist: create it with the key {self._key}"
        elif self._key not in secret.data:
            problem = f"secret {name} has no key {self._key}"
        else:
            try:
                return secret.data[self._key].decode()
            except UnicodeDecodeError:
                problem = f"secret {name}: the key {self._key} is not text"
        self._on_problem(Problem("InvalidKubeconfig", problem))
        return None

    async def _open(self, kubeconfig: str) -> Cluster | None:
        problem = INTERNAL
        with contained("source", self._cluster):
            try:
                cluster = await MachineApi.of_tenant(kubeconfig, name=self._cluster, reach=self._reach)
                self._on_problem(None)
                return cluster
            except InvalidKubeconfig as error:
                problem = Problem("InvalidKubeconfig", f"{self.where}: {error}")
                if isinstance(error, NotReadYet):
                    asyncio.get_running_loop().call_later(READ_AGAIN, self._changed.set)
        self._on_problem(problem)
        return None
