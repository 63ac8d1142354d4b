"""What the programs may change, by RBAC, and what else limits it: a policy, or a reason why none is needed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from devcluster.cluster_api import infrastructure_crd
from devcluster.controlplane import ControlPlane
from devcluster.install import SEED_USER
from devcluster.manifests import MACHINE_CRDS, Manifest, apply, load
from devcluster.objects import CHARTS, namespace, rights
from devcluster.patience import patient_timeout
from tests.chart.conftest import MERGE, Answer, Api

RBAC = CHARTS / "rbac"
CHANGES = {"update", "patch", "*"}
Right = tuple[str, str, str]
"""The file, the API group, and the resource."""

WEBHOOKS = "seedquota-seed-webhooks"
WORKLOADS = "seedquota-seed-workloads"
HOOKS = "admissionregistration.k8s.io"
OURS = "seedquota.io"

BY_POLICY: dict[Right, str] = {
    ("seed", HOOKS, "validatingwebhookconfigurations"): WEBHOOKS,
    ("seed-in-cluster", HOOKS, "validatingwebhookconfigurations"): WEBHOOKS,
    ("seed-own-webhooks", HOOKS, "validatingwebhookconfigurations"): WEBHOOKS,
    ("seed-own-webhooks", HOOKS, "mutatingwebhookconfigurations"): WEBHOOKS,
    ("seed", "", "secrets"): "seedquota-seed-secrets",
    ("seed", "cluster.x-k8s.io", "machinesets"): WORKLOADS,
    ("seed-own-machines", "cluster.k8s.io", "machinesets"): WORKLOADS,
    # Where they are bound on a seed.
    ("user-cluster-namespaces", HOOKS, "validatingwebhookconfigurations"): WEBHOOKS,
    ("user-cluster-namespaces", "", "replicationcontrollers"): WORKLOADS,
    ("user-cluster-namespaces", "apps", "replicasets"): WORKLOADS,
    ("user-cluster-namespaces", "apps", "statefulsets"): WORKLOADS,
    ("user-cluster-namespaces", "apps", "daemonsets"): WORKLOADS,
    ("user-cluster-namespaces", "batch", "jobs"): WORKLOADS,
    ("master", "", "namespaces"): "seedquota-master-namespaces",
}

LIMITS = "it decides about limits: that is what the program is for"
OWN = "its own record, in the namespace of its release"
SHOWN = "it only shows what the program knows"
EVENTS = "Events decide nothing"
USER_CLUSTER = "the tenant's own cluster: a policy of the platform there is the tenant's to remove"
PEOPLE = "a role for people"

BY_REASON: dict[Right, str] = {
    ("seed", OURS, "resourcequotas/status"): LIMITS,
    ("seed", OURS, "seeds/status"): SHOWN,
    ("seed", OURS, "userclusters/status"): SHOWN,
    ("seed", OURS, "quotaledgers"): OWN,
    ("seed", "coordination.k8s.io", "leases"): OWN,
    ("seed", "events.k8s.io", "events"): EVENTS,
    ("seed-local-quotas", OURS, "localresourcequotas"): SHOWN,
    ("seed-local-quotas", OURS, "localresourcequotaallocations"): SHOWN,
    ("user-cluster", "cluster.k8s.io", "machinesets"): USER_CLUSTER,
    ("user-cluster", HOOKS, "validatingwebhookconfigurations"): USER_CLUSTER,
    ("user-cluster", HOOKS, "mutatingwebhookconfigurations"): USER_CLUSTER,
    ("user-cluster", "events.k8s.io", "events"): EVENTS,
    ("user-cluster", "apiextensions.k8s.io", "customresourcedefinitions"): USER_CLUSTER,
    ("user-cluster", "rbac.authorization.k8s.io", "clusterroles"): USER_CLUSTER,
    ("user-cluster", OURS, "localresourcequotas"): SHOWN,
    ("user-cluster", OURS, "localresourcequotaallocations"): SHOWN,
    ("master", OURS, "resourcequotas"): LIMITS,
    ("master", OURS, "resourcequotas/status"): LIMITS,
    ("master", OURS, "seeds/status"): SHOWN,
    ("master", OURS, "resourcequotaallocations/status"): SHOWN,
    ("master", OURS, "projects/status"): SHOWN,
    ("master", OURS, "organizations/status"): SHOWN,
    ("master", OURS, "quotanotifications/status"): SHOWN,
    ("master", OURS, "quotaledgers"): OWN,
    ("master", "coordination.k8s.io", "leases"): OWN,
    ("master", "", "secrets"): OWN,
    ("master-api", OURS, "allocations"): LIMITS,
    ("master-api", OURS, "quotasettings"): LIMITS,
    ("master-api", OURS, "seeds"): LIMITS,
    ("master-values", OURS, "seeds"): LIMITS,
    ("master-values", OURS, "quotasettings"): LIMITS,
    ("master-on-seed", OURS, "resourcequotas"): LIMITS,
    ("master-on-seed", OURS, "resourcequotas/status"): LIMITS,
    ("master-on-seed", OURS, "projects"): LIMITS,
    ("master-on-seed", OURS, "organizations"): LIMITS,
    ("master-on-seed", OURS, "quotasettings"): LIMITS,
    ("master-on-seed", OURS, "seeds"): LIMITS,
    ("api-actors", OURS, "projects/allocations"): PEOPLE,
    ("api-actors", OURS, "resourcequotas"): PEOPLE,
    ("api-actors", OURS, "quotasettings"): PEOPLE,
    ("api-actors", OURS, "seeds"): PEOPLE,
    ("notifications", OURS, "quotanotifications"): PEOPLE,
    ("api-actors", OURS, "allocations"): PEOPLE,
    ("project-owner", "", "resourcequotas"): PEOPLE,
}


def changeable() -> Iterator[Right]:
    for path in sorted(RBAC.glob("*.yaml")):
        for role in load(path):
            found: Any = role
            for rule in found.get("rules") or ():
                if CHANGES.isdisjoint(rule["verbs"]):
                    continue
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        yield path.stem, group, resource


def policies() -> dict[str, Any]:
    return {
        found["metadata"]["name"]: found
        for path in RBAC.glob("*-policy.yaml")
        for found in load(path)
        if found["kind"] == "ValidatingAdmissionPolicy"
    }


def test_whatever_a_program_may_change_is_limited_by_a_policy_or_needs_none_for_a_reason() -> None:
    found = set(changeable())
    assert not BY_POLICY.keys() & BY_REASON.keys()
    assert sorted(found - BY_POLICY.keys() - BY_REASON.keys()) == []
    assert sorted((BY_POLICY.keys() | BY_REASON.keys()) - found) == [], "nobody has these rights any more"


@pytest.mark.parametrize(("right", "policy"), BY_POLICY.items())
def test_the_policy_asks_about_each_change(right: Right, policy: str) -> None:
    _, group, resource = right
    spec = policies()[policy]["spec"]
    assert spec["failurePolicy"] == "Fail"
    assert any(
        group in rule["apiGroups"]
        and resource in rule["resources"]
        and "UPDATE" in rule["operations"]
        and rule["apiVersions"] == ["*"]
        for rule in spec["matchConstraints"]["resourceRules"]
    )


def cluster_api_machine_sets() -> Manifest:
    found: Any = infrastructure_crd("MachineSet", "v1beta2")
    spec = {**found["spec"], "group": "cluster.x-k8s.io"}
    return {**found, "metadata": {"name": "machinesets.cluster.x-k8s.io"}, "spec": spec}


TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
SEVERAL = {"replicas": 0, "selector": {"matchLabels": {"app": "a"}}, "template": TEMPLATE}
ONCE = {"suspend": True, "template": {"spec": {"containers": TEMPLATE["spec"]["containers"], "restartPolicy": "Never"}}}
OF_MACHINES = {"clusterName": "c1", "replicas": 1, "template": {"spec": {"bootstrap": {"dataSecretName": "mine"}}}}
OF_MACHINE_CONTROLLER = {"replicas": 1, "template": {"spec": {"providerSpec": {"value": {"cloudProvider": "hetzner"}}}}}

OWNERS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("apps/v1", "ReplicaSet", SEVERAL, {"replicas": 5}),
    ("apps/v1", "StatefulSet", {**SEVERAL, "serviceName": "a"}, {"minReadySeconds": 1}),
    ("apps/v1", "DaemonSet", {"selector": SEVERAL["selector"], "template": TEMPLATE}, {"minReadySeconds": 1}),
    ("v1", "ReplicationController", {**SEVERAL, "selector": {"app": "a"}}, {"replicas": 5}),
    ("batch/v1", "Job", ONCE, {"parallelism": 7}),
    (
        "cluster.x-k8s.io/v1beta2",
        "MachineSet",
        OF_MACHINES,
        {"replicas": 5, "template": {"spec": {"bootstrap": {"dataSecretName": "theirs"}}}},
    ),
    ("cluster.k8s.io/v1alpha1", "MachineSet", OF_MACHINE_CONTROLLER, {"replicas": 5}),
]
FREED = "seedquota.io/capacity-freed"
SAID = f"seedquota-seed may change the annotation {FREED} of what makes pods and Machines only"


def path_of(api: str, kind: str, name: str = "") -> str:
    return f"/api{'s' if '/' in api else ''}/{api}/namespaces/default/{kind.lower()}s{name and '/' + name}"


@pytest.fixture(scope="module")
async def seed(plane: ControlPlane) -> AsyncIterator[Api]:
    """An API server with the agent's rights and policies, and an owner of each kind that it wakes."""
    await plane.start(["owners"], also_served=("apps/v1", "batch/v1"))
    await apply(
        plane.cluster("owners"),
        [
            cluster_api_machine_sets(),
            *load(MACHINE_CRDS),
            namespace("seedquota"),
            *rights("seed", SEED_USER),
            *rights("seed-own-machines", SEED_USER),
            *rights("user-cluster-namespaces", SEED_USER),
            *load(RBAC / "seed-policy.yaml"),
        ],
    )
    async with plane.cluster("owners").session() as session:
        api = Api(session)
        for version, kind, spec, _ in OWNERS:
            metadata = {"name": "a", "labels": {"app": "a"}, "annotations": {"theirs": "1"}}
            body = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
            answer = await api.call("POST", path_of(version, kind), body)
            assert answer.status == 201, answer
        async with patient_timeout(60):  # until the policy is known to the API server
            for replicas in itertools.count(1):  # another number each time: to change nothing is allowed
                answer = await change(api, *OWNERS[0][:2], {"spec": {"replicas": replicas}})
                if answer.status == 403 and SAID in answer.message:
                    break
                await asyncio.sleep(0.1)
        yield api
    await plane.cluster("owners").kill()


async def change(api: Api, version: str, kind: str, patch: object) -> Answer:
    return await api.call("PATCH", path_of(version, kind, "a"), patch, content_type=MERGE, user=SEED_USER)


@pytest.mark.integration
@pytest.mark.parametrize(("version", "kind", "spec"), [(version, kind, spec) for version, kind, _, spec in OWNERS])
async def test_a_stolen_token_of_the_agent_changes_no_more_of_owners_than_the_annotation_that_wakes_them(
    seed: Api, version: str, kind: str, spec: dict[str, Any]
) -> None:
    refused: list[Any] = [
        {"spec": spec},
        {"metadata": {"labels": {"app": "b"}}},
        {"metadata": {"finalizers": ["example.com/mine"]}},
        {"metadata": {"annotations": {"theirs": "2"}}},
        {"metadata": {"annotations": {"theirs": None}}},
        {"metadata": {"annotations": {"cluster.x-k8s.io/paused": "true"}}},
        {"metadata": {"annotations": {FREED: "now", "mine": "1"}}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}]}},
    ]
    for patch in refused:
        answer = await change(seed, version, kind, patch)
        assert answer.status == 403 and SAID in answer.message, (patch, answer)
    for stamp in ("now", "later", None):
        answer = await change(seed, version, kind, {"metadata": {"annotations": {FREED: stamp}}})
        assert answer.status == 200, answer
        known = {"theirs": "1"} if stamp is None else {"theirs": "1", FREED: stamp}
        assert answer.body["metadata"]["annotations"].items() >= known.items()
