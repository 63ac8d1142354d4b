"""What an infrastructure provider does for a Cluster of Cluster API, by the contract of v1beta2, but without machines.

Their Nodes are objects in an API server that stands for the Cluster's own.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import aiohttp

from devcluster.cluster_api import INFRASTRUCTURE_GROUP
from devcluster.controlplane import ApiServer
from devcluster.manifests import apply

log = logging.getLogger(__name__)

FINALIZER = f"devcluster.{INFRASTRUCTURE_GROUP}"
_INITIALIZED = "ControlPlaneInitialized"
_POLL_SECONDS = 0.25
_MERGE = {"Content-Type": "application/merge-patch+json"}
_HEALTHY = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}


class Infrastructure:
    """`async with Infrastructure(management, workload, namespace, cluster):` the Cluster has a control plane, which is
    `workload`, and every VSphereMachine in its namespace gets a Node there, until the block ends. Raises ManifestError.

    While `stalled`, nothing new comes up; what goes does go.
    """

    def __init__(self, management: ApiServer, workload: ApiServer, namespace: str, cluster: str) -> None:
        self._management = management
        self._workload = workload
        self._namespace = namespace
        self._cluster = cluster
        self.stalled = False
        self._path_of_cluster = f"/apis/cluster.x-k8s.io/v1beta2/namespaces/{namespace}/clusters/{cluster}"
        self._path = f"/apis/{INFRASTRUCTURE_GROUP}/v1beta1/namespaces/{namespace}"

    async def __aenter__(self) -> Self:
        self._machines = self._management.session()
        self._nodes = self._workload.session()
        try:
            # The kubeconfig first: Cluster API tries it once the infrastructure is there, and then not for 30 s.
            await apply(self._management, [self._kubeconfig()])
            await self._provisioned("vsphereclusters", self._cluster)
        except BaseException:
            await self._close()
            raise
        self._task = asyncio.create_task(self._run(), name="infrastructure")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._close()

    async def _close(self) -> None:
        await self._machines.close()
        await self._nodes.close()

    async def _initialize_control_plane(self) -> None:
        """Cluster API leaves it at that once it has seen it. Before, it may write the contrary from what it read."""
        async with self._machines.get(self._path_of_cluster, raise_for_status=True) as answer:
            found = (await answer.json()).get("status", {}).get("conditions", ())
        if any(condition["type"] == _INITIALIZED and condition["status"] == "True" for condition in found):
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": _INITIALIZED, "status": "True", "reason": "Initialized", "message": ""}
        cluster = {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Cluster",
            "metadata": {"name": self._cluster, "namespace": self._namespace},
            "status": {
                "initialization": {"controlPlaneInitialized": True},
                "conditions": [{**condition, "lastTransitionTime": now}],
            },
        }
        await self._machines.patch(
            f"{self._path_of_cluster}/status",
            json=cluster,
            headers={"Content-Type": "application/apply-patch+yaml"},
            params={"fieldManager": "devcluster-infrastructure", "force": "true"},
            raise_for_status=True,
        )

    def _kubeconfig(self) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": f"{self._cluster}-kubeconfig",
                "namespace": self._namespace,
                "labels": {"cluster.x-k8s.io/cluster-name": self._cluster},
            },
            "type": "cluster.x-k8s.io/secret",
            "data": {"value": base64.b64encode(self._workload.kubeconfig().encode()).decode()},
        }

    async def _run(self) -> None:
        while True:
            try:
                async with self._machines.get(f"{self._path}/vspheremachines", raise_for_status=True) as answer:
                    machines = (await answer.json())["items"]
                await self._initialize_control_plane()
                for machine in machines:
                    await self._attend(machine)
            except (aiohttp.ClientError, TimeoutError) as error:
                log.warning("infrastructure waits", extra={"error": repr(error)})
            await asyncio.sleep(_POLL_SECONDS)

    async def _attend(self, machine: Any) -> None:
        metadata, name = machine["metadata"], machine["metadata"]["name"]
        others = [found for found in metadata.get("finalizers", ()) if found != FINALIZER]
        if "deletionTimestamp" in metadata:
            if FINALIZER in metadata.get("finalizers", ()):
                await self._delete_node(name)
                await self._change(name, machine, metadata={"finalizers": others})
        elif _owned(metadata) and not self.stalled and not _is_provisioned(machine):
            identity = f"vsphere://{metadata['uid']}"
            await self._create_node(name, identity)
            finalizers = [*others, FINALIZER]
            await self._change(name, machine, metadata={"finalizers": finalizers}, spec={"providerID": identity})
            await self._provisioned("vspheremachines", name)

    async def _change(self, name: str, machine: Any, *, metadata: dict[str, object], **patch: object) -> None:
        """Unless somebody else changed it: then again in the next round."""
        body = {"metadata": {**metadata, "resourceVersion": machine["metadata"]["resourceVersion"]}, **patch}
        await self._machines.patch(
            f"{self._path}/vspheremachines/{name}", json=body, headers=_MERGE, raise_for_status=True
        )

    async def _provisioned(self, plural: str, name: str) -> None:
        body = {"status": {"initialization": {"provisioned": True}}}
        await self._machines.patch(
            f"{self._path}/{plural}/{name}/status", json=body, headers=_MERGE, raise_for_status=True
        )

    async def _create_node(self, name: str, identity: str) -> None:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "spec": {"providerID": identity},
            "status": {"conditions": [{"type": kind, "status": status} for kind, status in _HEALTHY.items()]},
        }
        async with self._nodes.post("/api/v1/nodes", json=node) as answer:
            if answer.status != 409:
                answer.raise_for_status()

    async def _delete_node(self, name: str) -> None:
        async with self._nodes.delete(f"/api/v1/nodes/{name}") as answer:
            if answer.status != 404:
                answer.raise_for_status()


def _owned(metadata: Any) -> bool:
    """What a MachineSet made for a Machine that is refused has another owner, and goes again."""
    return any(owner["kind"] == "Machine" for owner in metadata.get("ownerReferences", ()))


def _is_provisioned(machine: Any) -> bool:
    return bool(machine.get("status", {}).get("initialization", {}).get("provisioned"))
