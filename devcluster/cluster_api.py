"""The real core controllers of Cluster API on one of the API servers: its CRDs, its manager, its webhooks.

They make Machines of MachineDeployments and MachineSets, and machines of nothing: there is no infrastructure provider.
Its place takes whoever creates the kinds of `infrastructure_crd` and marks their objects as provisioned.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from devcluster import binaries, certificates
from devcluster.controlplane import ApiServer
from devcluster.manifests import Manifest, apply, load
from devcluster.network import free_port
from devcluster.processes import ProcessGroup
from devcluster.servers import Server

INFRASTRUCTURE_GROUP = "infrastructure.cluster.x-k8s.io"

_MANAGER = binaries.PROGRAMS["cluster-api-controller-manager"]
_PROBE_TIMEOUT = aiohttp.ClientTimeout(total=5)


class _Manager(Server):
    def __init__(self, name: str, command: list[str], directory: Path, group: ProcessGroup, health: str) -> None:
        super().__init__(name, command, directory, group)
        self._health = health

    async def _ready(self) -> bool:
        try:
            async with aiohttp.ClientSession(timeout=_PROBE_TIMEOUT) as session, session.get(self._health) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


class ClusterApi:
    """`async with ClusterApi(server, directory):` runs it until the end; the log is in the directory.

    The manager is built when it is needed first, which takes minutes. Raises BuildError, ManifestError, StartError.
    """

    def __init__(self, server: ApiServer, directory: Path) -> None:
        self._server = server
        self._directory = directory / f"{server.name}-cluster-api"

    async def __aenter__(self) -> Self:
        executable = (await binaries.ensure([_MANAGER.name]))[_MANAGER.name]
        config = await binaries.sources(_MANAGER) / "config"
        serving = certificates.serving("cluster-api")
        self._directory.mkdir(mode=0o700, parents=True)
        (self._directory / "tls.crt").write_text(serving.certificate)
        (self._directory / "tls.key").write_text(serving.key)
        kubeconfig = self._directory / "kubeconfig"
        kubeconfig.write_text(self._server.kubeconfig())
        webhook, health = free_port(), free_port()
        url, ca = f"https://127.0.0.1:{webhook}", base64.b64encode(serving.ca.encode()).decode()
        crds = await asyncio.to_thread(load, config / "crd" / "bases")
        await apply(self._server, [_converted(crd, url, ca) for crd in crds])
        self._group = ProcessGroup()
        self._command = [
            str(executable),
            f"--kubeconfig={kubeconfig}",
            f"--webhook-port={webhook}",
            f"--webhook-cert-dir={self._directory}",
            f"--health-addr=127.0.0.1:{health}",
            "--diagnostics-address=0",
            "--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
        ]
        self._health = f"http://127.0.0.1:{health}/readyz"
        self.manager = self._manager("--feature-gates=ReconcilerRateLimiting=true")
        try:
            await self.manager.start()
            hooks = await asyncio.to_thread(load, config / "webhook" / "manifests.yaml")
            await apply(self._server, [_called_at(hook, url, ca) for hook in hooks])
        except BaseException:
            await asyncio.to_thread(self._group.close)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._group.close)

    async def be_prompt(self) -> None:
        """From now on its controllers look at an object as soon as it changed, not once a second. Raises StartError."""
        await self.manager.stop()
        self.manager = self._manager("--feature-gates=ReconcilerRateLimiting=false")
        await self.manager.start()

    def _manager(self, flag: str) -> _Manager:
        return _Manager("manager", [*self._command, flag], self._directory, self._group, self._health)


def infrastructure_crd(kind: str, version: str) -> Manifest:
    """A kind of an infrastructure provider that takes any spec, by Cluster API's contract of v1beta2."""
    anything: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.lower()}s.{INFRASTRUCTURE_GROUP}",
            "labels": {"cluster.x-k8s.io/provider": "infrastructure-test", "cluster.x-k8s.io/v1beta2": version},
        },
        "spec": {
            "group": INFRASTRUCTURE_GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def _converted(crd: Manifest, url: str, ca: str) -> Manifest:
    """Its versions are converted by the manager."""
    found: Any = crd
    webhook = {"clientConfig": {"url": f"{url}/convert", "caBundle": ca}, "conversionReviewVersions": ["v1"]}
    return {**found, "spec": {**found["spec"], "conversion": {"strategy": "Webhook", "webhook": webhook}}}


def _called_at(configuration: Manifest, url: str, ca: str) -> Manifest:
    """Webhooks are reached through a Service in a real cluster; here there is none."""
    found: Any = configuration
    hooks = [
        {**hook, "clientConfig": {"url": url + hook["clientConfig"]["service"]["path"], "caBundle": ca}}
        for hook in found["webhooks"]
        if not _of_features_that_are_off(hook["rules"])
    ]
    return {
        **found,
        "metadata": {**found["metadata"], "name": f"cluster-api-{found['metadata']['name']}"},
        "webhooks": hooks,
    }


def _of_features_that_are_off(rules: Iterable[Any]) -> bool:
    return any(set(rule["resources"]) & {"clusterclasses", "extensionconfigs"} for rule in rules)
