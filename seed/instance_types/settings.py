"""A provider's settings, found where machine-controller would find them: in the Machine, in a Secret or ConfigMap of
the user cluster, in the environment.

The environment is the Secret that the UserCluster names on the seed, with the variables' names as keys; without one it
is this program's own. What is read from another API server is kept for a while, and longer while that does not answer.
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

from common.api.core import SECRETS
from common.api.types import UserCluster
from common.kube.client.api_client import Cluster, RequestHook
from common.kube.client.errors import ApiError, NotFound
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.runtime.lru import LruDict
from seed.providers.flavour import Lookup, Reference, Setting, Settings
from seed.providers.size import CredentialsMissing, NotSized, ProviderUnavailable

log = logging.getLogger(__name__)

KEPT_SECONDS = 60.0
READ_SECONDS = 5.0
MAX_KEPT = 4096
MAX_CONNECTIONS = 256


class ConfigMap(Object, frozen=True, kw_only=True):
    data: dict[str, str] = {}


CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", True, ConfigMap)


class _Read(msgspec.Struct, frozen=True):
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
        on_request: RequestHook | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Without a seed no Secret is read."""
        self._seed = seed
        self._on_request = on_request
        self._environment = environment
        self._kept: LruDict[tuple[str, str, str, str], _Read] = LruDict()
        self._connections: OrderedDict[tuple[str, str], Cluster] = OrderedDict()  # cluster uid, kubeconfig

    async def where(self, cluster: UserCluster, lookup: Lookup) -> Settings:
        """What decides which cloud is asked. Raises ProviderUnavailable."""
        environment, named = await self._environment_of(cluster, lookup)
        return await self._settle(cluster, lookup.provider, lookup.where, environment, named, NotSized)

    async def credentials(self, cluster: UserCluster, lookup: Lookup) -> Settings:
        """Everything else that asking takes. Raises ProviderUnavailable.

        Credentials of the environment are the platform's. Whoever writes a Machine may also say in it which host is
        asked, so they are not sent there unless the environment names the same host.
        """
        environment, named = await self._environment_of(cluster, lookup)
        if lookup.endpoint:
            setting = lookup.where[lookup.endpoint]
            asked = (await self.where(cluster, lookup)).get(lookup.endpoint)
            if asked != environment.get(setting.variable, ""):
                named = (
                    f"; those of {named} are not sent to an {lookup.endpoint} that the Machine names, unless "
                    f"{setting.variable} there is the same"
                )
                environment = {}
        return await self._settle(cluster, lookup.provider, lookup.credentials, environment, named, CredentialsMissing)

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()

    async def _settle(
        self,
        cluster: UserCluster,
        provider: str,
        wanted: Mapping[str, Setting],
        environment: Mapping[str, str],
        named: str,
        error: type[NotSized],
    ) -> Settings:
        values: dict[str, str] = {}
        missing: dict[str, str] = {}
        for name, setting in wanted.items():
            value, problem = setting.value, ""
            if setting.reference is not None:
                value, problem = await self._referred(cluster, provider, setting.reference)
            # Whoever fills a Secret must not choose among the files of this program, or whom it asks for its own keys.
            here = environment is self._environment or not (setting.file or setting.own)
            if not value and setting.variable and here:
                value = environment.get(setting.variable, "")
                if value and setting.file:
                    value, problem = await _file(value, setting.variable)
            if value:
                values[name] = value
            else:
                missing[name] = self._how_to_set(setting, problem, named)
        referred = [name for name, setting in wanted.items() if setting.reference is not None]
        return Settings(provider, values, missing, error, referred)

    def _how_to_set(self, setting: Setting, problem: str, named: str) -> str:
        """`named`: how to call the environment, or from its semicolon on why it is not used."""
        if setting.platform:
            return f": set {setting.variable} in {named}"
        how = problem or ": set it in the Machine"
        if not setting.variable or (problem and self._seed is not None):
            return how
        if named.startswith(";"):
            return how + named
        return f"{how}, or {'set ' if problem else ''}{setting.variable} in {named}"

    async def _environment_of(self, cluster: UserCluster, lookup: Lookup) -> tuple[Mapping[str, str], str]:
        """And how to call it."""
        declared = cluster.spec.provider
        if self._seed is None or declared is None or declared.credentials_secret_ref is None:
            return self._environment, "seedquota-seed's environment"
        namespace, name = cluster.metadata.namespace, declared.credentials_secret_ref.name
        read = await self._object("seed", self._seed, "Secret", namespace, name, lookup.provider)
        return read.data, f"Secret {namespace}/{name} of the UserCluster"

    async def _referred(self, cluster: UserCluster, provider: str, reference: Reference) -> tuple[str, str]:
        """The text, or why there is none."""
        if self._seed is None:
            return "", f": {reference} can be read with --user-cluster"
        if cluster.spec.kubeconfig_secret_ref is None and reference.namespace != cluster.metadata.namespace:
            # The seed's Secrets of others: whoever may create a Machine here must not have us use them.
            return "", f": {reference} is not in the UserCluster's namespace"
        key = (cluster.metadata.uid, reference.kind, reference.namespace, reference.name)
        kept = self._kept.get(key)
        if kept is None or time.monotonic() >= kept.until:
            connection = await self._connection(cluster, self._seed, provider)
            kept = await self._object(key[0], connection, *key[1:], provider)
        if kept.problem:
            return "", f": {kept.problem}"
        return kept.data.get(reference.key, ""), f": {reference} is not set"

    async def _object(
        self, uid: str, connection: Cluster, kind: str, namespace: str, name: str, provider: str
    ) -> _Read:
        key = (uid, kind, namespace, name)
        kept = self._kept.get(key)
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
        found = _Read(data, problem, time.monotonic() + (KEPT_SECONDS if not problem else KEPT_SECONDS / 12))
        self._kept.keep(key, found, MAX_KEPT)
        return found

    async def _connection(self, cluster: UserCluster, seed: Cluster, provider: str) -> Cluster:
        reference = cluster.spec.kubeconfig_secret_ref
        if reference is None:
            return seed
        namespace = cluster.metadata.namespace
        read = await self._object("seed", seed, "Secret", namespace, reference.name, provider)
        kubeconfig = read.data.get(reference.key, "")
        key = (cluster.metadata.uid, kubeconfig)
        connection = self._connections.get(key)
        if connection is None:
            try:
                connection = await Cluster.from_kubeconfig(
                    kubeconfig, name=cluster.metadata.key, timeout=READ_SECONDS, on_request=self._on_request
                )
            except InvalidKubeconfig as error:
                raise ProviderUnavailable(provider, "the user cluster's kubeconfig cannot be used") from error
            self._connections[key] = connection
            if len(self._connections) > MAX_CONNECTIONS:
                await self._connections.popitem(last=False)[1].close()
        self._connections.move_to_end(key)
        return connection


async def _file(path: str, variable: str) -> tuple[str, str]:
    try:
        return (await asyncio.to_thread(Path(path).read_text)).strip(), ""
    except (OSError, UnicodeDecodeError):
        return "", f": the file that {variable} names cannot be read"
