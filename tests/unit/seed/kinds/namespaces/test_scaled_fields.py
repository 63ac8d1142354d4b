"""Which field a Scale sets, as the definition of its kind says it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.resource import Resource
from common.quota.object_names import GroupResource
from seed.kinds.namespaces.scaled_fields import scaled_fields

DATABASES = GroupResource("databases", "example.com")
USUAL = ("spec", "replicas")


class Definitions:
    """Of the cluster: `spec` of the only one, or none."""

    def __init__(self, spec: dict[str, Any] | None) -> None:
        self.spec = spec

    def connection(self, _cluster: str) -> Cluster:
        return cast(Cluster, self)

    async def find(self, resource: Resource[Any], name: str) -> Any:
        if self.spec is None:
            return None
        return resource.decode(msgspec.json.encode({"metadata": {"name": name}, "spec": self.spec}))


def version(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "subresources": {"scale": {"specReplicasPath": path}} if path else {}}


@pytest.mark.parametrize(
    ("versions", "conversion", "written", "found"),
    [
        ({"v1": ".spec.replicas", "v2": ".spec.replicas"}, "None", "v2", USUAL),
        ({"v1": "", "v2": ".spec.replicas"}, "None", "v2", USUAL),
        ({"v1": ".spec.replicas", "v2": ".spec.workers"}, "None", "v2", ("spec", "workers")),
        ({"v1": ".spec.replicas", "v2": ".spec.workers"}, "None", "v1", USUAL),
        ({"v1": ".spec.replicas", "v2": ".spec.workers"}, "Webhook", "v2", USUAL),
        ({"v1": "", "v2": ".spec.replicas"}, "Webhook", "v2", None),
        ({"v2": ".spec.replicas"}, "None", "v2", None),
    ],
)
async def test_the_field_is_that_of_the_version_that_was_written_unless_a_webhook_converts(
    versions: dict[str, str], conversion: str, written: str, found: tuple[str, ...] | None
) -> None:
    spec = {"versions": [version(*each) for each in versions.items()], "conversion": {"strategy": conversion}}
    until = asyncio.get_running_loop().time() + 1.0
    known = await scaled_fields(Definitions(spec), "alpha/c1", DATABASES, ["v1"], written, until)
    assert known == ({} if found is None else {"v1": found})


async def test_a_kind_without_a_definition_has_its_replicas_where_kinds_of_kubernetes_have_them() -> None:
    until = asyncio.get_running_loop().time() + 1.0
    assert await scaled_fields(Definitions(None), "alpha/c1", DATABASES, ["v1"], "v2", until) == {"v1": USUAL}
    deployments = GroupResource("deployments", "apps")
    assert await scaled_fields(Definitions(None), "alpha/c1", deployments, ["v1"], "v1", until) == {"v1": USUAL}
