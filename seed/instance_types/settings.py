"""Reads what a cloud is asked with, where machine-controller would look for it: in the Machine, in a Secret or
ConfigMap of the user cluster, in the environment. What becomes of it is decided in access.py.

The environment of a user cluster is one of these, the first that there is: the account of Kubermatic's Cluster, the
Secret that the UserCluster names on the seed, with the variables' names as keys, and this program's own environment.
What is read from another API server is kept for a while, and longer while that does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import msgspec

from common.api.core import CONFIG_MAPS, SECRETS
from common.api.types import SecretRef, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, NotFound
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.client.reach import DEFAULT, Reach
from common.kube.client.transport import close_all
from common.runtime.lru import LruByOwner
from seed.instance_types.access import Access, Environment, Read, decide
from seed.providers.cloud_account import SECRET, AccountedCluster
from seed.providers.flavour import Lookup, Reference
from seed.providers.size import ProviderUnavailable

log = logging.getLogger(__name__)

KEPT_SECONDS = 60.0
READ_SECONDS = 5.0
MAX_KEPT = 16  # objects of one user cluster, and as many on the seed that are about it
MAX_OBJECT = 256 * 1024  # characters of a Secret or ConfigMap, as of a kubeconfig
MAX_CONNECTIONS = 256


_Name = tuple[str, str, str]
"""Kind, namespace and name."""


class _Held(msgspec.Struct, frozen=True):
    """The texts of one object by key, or why there are none."""

    data: dict[str, str]
    problem: str
    until: float


class SettingsReader:
    """Reads for all user clusters of one replica. `close()` it."""

    def __init__(
        self,
        seed: Cluster | None,
        *,
        reach: Reach = DEFAULT,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Without a seed no Secret is read."""
        self._seed = seed
        self._reach = reach
        self._environment = environment
        self._kept: LruByOwner[_Name, _Held] = LruByOwner(MAX_KEPT)  # by the user cluster's uid, and where it is
        self._connections: OrderedDict[tuple[str, str], Cluster] = OrderedDict()  # cluster uid, kubeconfig

    async def access(self, cluster: UserCluster, lookup: Lookup) -> Access:
        """Raises NotSized and ProviderUnavailable."""
        environment = await self._environment_of(cluster, lookup.provider)
        return await decide(
            lookup, environment, lambda reference: self._referred(cluster, lookup.provider, reference), _content
        )

    async def close(self) -> None:
        await close_all(self._connections.values())

    async def _environment_of(self, cluster: UserCluster, provider: str) -> Environment:
        namespace, declared = cluster.metadata.namespace, cluster.spec.provider
        if self._seed is not None and isinstance(cluster, AccountedCluster):
            account = cluster.account
            data: Mapping[str, str] = {}
            if account.keys:
                data = (await self._on_seed(cluster, self._seed, SECRET, provider)).data
            values = dict(account.values)
            for variable, keys in account.keys.items():
                values[variable] = next((data[key] for key in keys if data.get(key)), "")
            return Environment(values, f"Kubermatic's Cluster {account.cluster}", places=account.places)
        if self._seed is None or declared is None or declared.credentials_secret_ref is None:
            return Environment(self._environment, "seedquota-seed's environment", own=True)
        name = declared.credentials_secret_ref.name
        read = await self._on_seed(cluster, self._seed, name, provider)
        return Environment(read.data, f"Secret {namespace}/{name} of the UserCluster")

    async def _referred(self, cluster: UserCluster, provider: str, reference: Reference) -> Read:
        if self._seed is None:
            return Read("", f": {reference} can be read with --user-cluster", refused=True)
        if cluster.spec.kubeconfig_secret_ref is None:
            # Who may create a Machine on the seed may not have this program use, or show, what is in a Secret there.
            return Read("", f": {reference} is not read for a Machine that the seed itself holds", refused=True)
        owner = (cluster.metadata.uid, "user cluster")
        name = (reference.kind, reference.namespace, reference.name)
        kept = self._kept.get(owner, name)
        if kept is None or time.monotonic() >= kept.until:
            connection = await self._connection(cluster, self._seed, cluster.spec.kubeconfig_secret_ref, provider)
            kept = await self._object(owner, connection, name, provider)
        if kept.problem:
            return Read("", f": {kept.problem}")
        return Read(kept.data.get(reference.key, ""), f": {reference} is not set")

    async def _on_seed(self, cluster: UserCluster, seed: Cluster, secret: str, provider: str) -> _Held:
        owner = (cluster.metadata.uid, "seed")
        return await self._object(owner, seed, ("Secret", cluster.metadata.namespace, secret), provider)

    async def _object(self, owner: tuple[str, str], connection: Cluster, key: _Name, provider: str) -> _Held:
        kind, namespace, name = key
        kept = self._kept.get(owner, key)
        if kept is not None and time.monotonic() < kept.until:
            return kept
        data: dict[str, str] = {}
        problem = ""
        try:
            async with asyncio.timeout(READ_SECONDS):
                if kind == "Secret":
                    secret = await connection.get(SECRETS, name, namespace)
                    data = {entry: value.decode("utf-8", "replace").strip() for entry, value in secret.data.items()}
                else:
                    data = (await connection.get(CONFIG_MAPS, name, namespace)).data
        except NotFound:
            problem = f"{kind} {namespace}/{name} does not exist"
        except (ApiError, TimeoutError) as error:
            if isinstance(error, ApiError) and error.status in (401, 403):
                problem = f"SeedQuota may not read {kind} {namespace}/{name}"
            elif kept is not None:
                return kept  # however old: better than none
            else:
                raise ProviderUnavailable(provider, f"{kind} {namespace}/{name} cannot be read now") from error
        if sum(map(len, data)) + sum(map(len, data.values())) > MAX_OBJECT:
            data, problem = {}, f"{kind} {namespace}/{name} has more than {MAX_OBJECT} characters"
        found = _Held(data, problem, time.monotonic() + (KEPT_SECONDS if not problem else KEPT_SECONDS / 12))
        self._kept.keep(owner, key, found)
        return found

    async def _connection(self, cluster: UserCluster, seed: Cluster, reference: SecretRef, provider: str) -> Cluster:
        read = await self._on_seed(cluster, seed, reference.name, provider)
        kubeconfig = read.data.get(reference.key, "")
        key = (cluster.metadata.uid, kubeconfig)
        connection = self._connections.get(key)
        if connection is None:
            try:
                connection = await Cluster.of_tenant(
                    kubeconfig, name=cluster.metadata.key, timeout=READ_SECONDS, reach=self._reach
                )
            except InvalidKubeconfig as error:
                raise ProviderUnavailable(provider, "the user cluster's kubeconfig cannot be used") from error
            if key in self._connections:  # somebody else was faster
                await connection.close()
                return self._connections[key]
            self._connections[key] = connection
            if len(self._connections) > MAX_CONNECTIONS:
                await self._connections.popitem(last=False)[1].close()
        self._connections.move_to_end(key)
        return connection


async def _content(path: str) -> str | None:
    try:
        return (await asyncio.to_thread(Path(path).read_text)).strip()
    except (OSError, UnicodeDecodeError):
        return None
