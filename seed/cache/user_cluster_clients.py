"""Connections to user clusters' API servers that a replica opens when it has something to say there.

Every replica answers admission, but only the leader follows user clusters (seed/kinds/machines/source.py). What the
others need of one goes here: few at a time, opened by the kubeconfig of its UserCluster, closed when nobody needs them.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common.api.core import SECRETS
from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Unavailable
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.client.reach import DEFAULT, Reach

MAX_OPEN = 256
AT_A_TIME = 4  # uses of one: a tenant can have its API server never answer, and others must not wait for it
IDLE_SECONDS = 60.0
TIMEOUT = 5.0  # seconds for one request


class _Connection:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.users = 0
        self.used_at = 0.0


class _Turns:
    """Of one user cluster, while somebody uses its connection or waits for that."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(AT_A_TIME)
        self.opening = asyncio.Lock()
        self.users = 0


class Connections:
    """`run()` closes what is idle, and at its end all of them."""

    def __init__(self, seed: Cluster, *, reach: Reach = DEFAULT) -> None:
        self._seed = seed
        self._reach = reach
        self._open: OrderedDict[str, _Connection] = OrderedDict()  # by the UserCluster's uid, the least used first
        self._opening = 0
        self._turns: dict[str, _Turns] = {}
        self._places = asyncio.Semaphore(MAX_OPEN)
        self._ended = False

    @asynccontextmanager
    async def to(self, user_cluster: UserCluster) -> AsyncIterator[Cluster]:
        """The API server with the user cluster's Machines. Raises ApiError, also where there is no way to it."""
        if user_cluster.spec.kubeconfig_secret_ref is None:
            yield self._seed
            return
        uid = user_cluster.metadata.uid
        async with self._turn(uid) as turns, self._places:
            connection = await self._connection(user_cluster, turns)
            connection.users += 1
            try:
                yield connection.cluster
            except ApiError as error:
                if error.status in (0, 401) and self._open.get(uid) is connection:
                    del self._open[uid]  # the Secret may have another kubeconfig by now
                raise
            finally:
                connection.users -= 1
                connection.used_at = time.monotonic()
                if not connection.users and (self._ended or self._open.get(uid) is not connection):
                    await connection.cluster.close()

    @asynccontextmanager
    async def _turn(self, uid: str) -> AsyncIterator[_Turns]:
        turns = self._turns.setdefault(uid, _Turns())
        turns.users += 1
        try:
            async with turns.places:
                yield turns
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[uid]

    async def run(self) -> None:
        """Until cancelled."""
        self._ended = False
        try:
            while True:
                await asyncio.sleep(IDLE_SECONDS / 4)
                await self._close(time.monotonic() - IDLE_SECONDS)
        finally:
            self._ended = True
            await self._close(float("inf"))

    async def _connection(self, user_cluster: UserCluster, turns: _Turns) -> _Connection:
        uid = user_cluster.metadata.uid
        async with turns.opening:  # of this one alone: a tenant can have it take long
            known = self._open.get(uid)
            if known is None:
                while len(self._open) + self._opening >= MAX_OPEN:
                    await self._close_one()
                self._opening += 1
                try:
                    known = self._open[uid] = _Connection(await self._connect(user_cluster))
                finally:
                    self._opening -= 1
        self._open.move_to_end(uid)
        return known

    async def _close_one(self) -> None:
        """The one that was not needed for longest. There is one that nobody uses: each user has one of the places."""
        uid = next(uid for uid, connection in self._open.items() if not connection.users)
        await self._open.pop(uid).cluster.close()

    async def _close(self, unused_since: float) -> None:
        for uid, connection in list(self._open.items()):
            if not connection.users and connection.used_at <= unused_since:
                del self._open[uid]
                await connection.cluster.close()

    async def _connect(self, user_cluster: UserCluster) -> Cluster:
        reference, namespace = user_cluster.spec.kubeconfig_secret_ref, user_cluster.metadata.namespace
        assert reference is not None, "whoever has none is on the seed"
        where = f"secret {namespace}/{reference.name}, key {reference.key}"
        secret = await self._seed.get(SECRETS, reference.name, namespace)
        try:
            return await Cluster.of_tenant(
                secret.data.get(reference.key, b"").decode(),
                name=user_cluster.metadata.key,
                timeout=TIMEOUT,
                reach=self._reach,
            )
        except (InvalidKubeconfig, UnicodeDecodeError) as error:
            why = error if isinstance(error, InvalidKubeconfig) else "is not text"
            raise Unavailable(0, "InvalidKubeconfig", f"{where}: {why}") from None
