"""What `kubectl apply` warns of on the master, as a real API server says it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from devcluster.controlplane import ControlPlane
from devcluster.manifests import apply, load
from tests.chart.conftest import CHARTS, MERGE, Api

API_VERSION = "seedquota.io/v1alpha1"
NAME = "kubernetes.io/metadata.name"
NAMESPACES_QUOTA = "owner-ann"


def quota(name: str, subject: dict, **limits: str) -> dict:
    spec = {"subject": subject, "quota": limits or {"pods": "50"}}
    return {"apiVersion": API_VERSION, "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec}


def of_namespaces(selector: dict, **more: object) -> dict:
    return quota(NAMESPACES_QUOTA, {"kind": "namespaces", "selector": selector, **more})


def by_name(operator: str, *values: str) -> dict:
    return {"matchExpressions": [{"key": NAME, "operator": operator, **({"values": list(values)} if values else {})}]}


def seed(name: str, namespace_quotas: str, *exempt: str) -> dict:
    return {
        "apiVersion": API_VERSION,
        "kind": "Seed",
        "metadata": {"name": name},
        "spec": {"kubeconfigSecretRef": {"name": name}, "namespaceQuotas": namespace_quotas},
        "status": {"exemptNamespaces": list(exempt)},
    }


@pytest.fixture(scope="module")
async def warned(plane: ControlPlane, api: Api) -> AsyncIterator[Api]:
    """One seed whose own namespaces take part, one whose do not, and a quota of which more is used than is left."""
    stored = [
        seed("eu-1", "Enabled", "kube-system", "cni"),
        seed("us-1", "Disabled", "other"),
        {
            **quota("project-used", {"kind": "project", "name": "used"}, cpu="64", memory="1Gi"),
            "status": {"globalUsage": {"cpu": "60"}},
        },
    ]
    for body in stored:
        await api.store(body)
    policies = load(CHARTS / "rbac" / "master-policy.yaml")
    await apply(plane.cluster("charts"), policies)
    async with asyncio.timeout(60):
        while not (await api.create(of_namespaces(by_name("Exists")))).warnings:
            await asyncio.sleep(0.1)
    yield api
    for body in (*policies, *stored):
        await api.call("DELETE", api.path(body))


@pytest.mark.parametrize(
    ("subject", "named"),
    [
        (by_name("In", "cni", "web"), "cni"),
        (by_name("In", "web"), ""),
        (by_name("Exists"), "kube-system, cni"),
        (by_name("NotIn", "cni"), "kube-system"),
        ({"matchLabels": {NAME: "kube-system"}}, "kube-system"),
        ({"matchLabels": {NAME: "other"}}, ""),
        ({"matchLabels": {"owner": "ann"}}, ""),
    ],
)
async def test_a_selector_that_names_exempt_namespaces_is_warned_of(warned: Api, subject: dict, named: str) -> None:
    answer = await warned.create(of_namespaces(subject))
    assert answer.status == 201
    said = [text for text in answer.warnings if "counts nothing in namespaces" in text]
    if not named:
        assert said == []
    else:
        (text,) = said
        assert f"exempt: {named};" in text


async def test_a_quota_of_some_user_clusters_is_not_warned_of(warned: Api) -> None:
    answer = await warned.create(of_namespaces(by_name("In", "cni"), clusters={"matchLabels": {"tier": "prod"}}))
    assert (answer.status, answer.warnings) == (201, [])


@pytest.mark.parametrize(
    ("limits", "told"),
    [({"cpu": "59"}, "cpu=60 of 59"), ({"cpu": "60"}, ""), ({"memory": "512Mi"}, ""), ({"cpu": "80"}, "")],
)
async def test_a_limit_below_what_is_used_is_warned_of(warned: Api, limits: dict[str, str], told: str) -> None:
    body = quota("project-used", {"kind": "project", "name": "used"})
    answer = await warned.call(
        "PATCH", f"{warned.path(body)}?dryRun=All", {"spec": {"quota": limits}}, content_type=MERGE
    )
    assert answer.status == 200
    assert bool(told) == bool(answer.warnings)
    assert all(told in text for text in answer.warnings)
