"""The schemas as a real API server reads them: what it takes, what it refuses, and in which words."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cli.migration import kkp, manifests, unikorn
from cli.migration import namespaces as of_namespaces
from common.quota import object_names, resources
from common.quota.names import BASE, FURTHER, MAX_COUNTERS
from common.quota.quantity import QuantityError, parse
from common.quota.use_text import peak_text, usage_text
from tests.unit.cli import test_migration as exported

pytestmark = pytest.mark.integration

API_VERSION = "seedquota.io/v1alpha1"
NOW = "2026-11-20T10:00:03Z"
GOLDEN = Path(__file__).parents[1] / "unit" / "data" / "quantity_golden.tsv"
CHARTS = Path(__file__).parents[2] / "charts"


MIGRATED = {
    "kkp": (kkp.translated, exported.KKP),
    "unikorn": (unikorn.translated, exported.UNIKORN),
    "openshift": (of_namespaces.openshift, exported.OPENSHIFT),
    "hnc": (of_namespaces.hnc, exported.HNC),
    "capsule": (of_namespaces.capsule, exported.CAPSULE),
    "rancher": (of_namespaces.rancher, exported.RANCHER),
}


def ready(type: str = "Ready", status: str = "True", reason: str = "AllReported") -> dict:
    return {"type": type, "status": status, "reason": reason, "message": "", "lastTransitionTime": NOW}


def resource(kind: str, name: str, spec: dict, **metadata: str) -> dict:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def project_quota(**spec: object) -> dict:
    """A quota on project alpha, with some fields of its spec replaced (None removes one)."""
    merged = {"subject": {"kind": "project", "name": "alpha"}, "quota": {"cpu": "64"}, **spec}
    given = {name: value for name, value in merged.items() if value is not None}
    return resource("ResourceQuota", "project-alpha", given)


def overridden(raised: dict, until: str = NOW, **spec: object) -> dict:
    return project_quota(overrides=[{"until": until, "quota": raised}], **spec)


def seed(**spec: object) -> dict:
    return resource("Seed", "eu-1", {"kubeconfigSecretRef": {"name": "eu-1"}, **spec})


def namespaces(clusters: dict | None = None, **spec: object) -> dict:
    """A quota of namespaces, with all that narrows it."""
    subject = {"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}}
    subject["clusters"] = clusters or {"matchLabels": {"tier": "prod"}}
    scopes = {
        "scopes": ["NotTerminating"],
        "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}]},
    }
    return project_quota(subject=subject, **{"quota": {"pods": "50"}, **scopes, **spec})


def allocation(**hard: str) -> dict:
    spec = {"selector": {"matchLabels": {"owner": "ann"}}, "allocation": {"hard": hard}}
    return resource("ResourceQuotaAllocation", "owner-ann", spec)


REACHED = {"project": "alpha", "kubeconfigSecretRef": {"name": "c1"}}


def project(name: str, spec: dict) -> dict:
    return resource("Project", name, spec)


def cluster(name: str, spec: dict) -> dict:
    return resource("UserCluster", name, spec, namespace="alpha")


def settings(project: dict | None = None, **spec: object) -> dict:
    defaults = {"project": project} if project is not None else {}
    return resource("QuotaSettings", "default", {"defaults": defaults, **spec})


def notification(**spec: object) -> dict:
    given = {"events": ["Full"], "form": "slack", "secretRef": {"name": "hook"}, **spec}
    return resource("QuotaNotification", "hook", given, namespace="alpha")


def of_organization(name: str = "a1", **spec: object) -> dict:
    whose = {"organization": "acme", "project": "alpha", "kind": "kubernetescluster", "id": "d6beb0dd"}
    spec = {**whose, "resources": [allocated("servers", 3, 5)], **spec}
    return resource("Allocation", name, spec, namespace="alpha")


def allocated(type: str, committed: int, reserved: int = 0) -> dict:
    return {"type": type, "committed": committed, "reserved": reserved}


def counted(name: str, count_from: str) -> dict:
    return settings(resources=[{"name": name, "countFrom": count_from}])


def named(body: dict, name: str) -> dict:
    return {**body, "metadata": {**body["metadata"], "name": name}}


EXAMPLES = list(yaml.safe_load_all((Path(__file__).parent / "data" / "examples.yaml").read_text()))


def contains(whole: object, part: object) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(name in whole and contains(whole[name], part[name]) for name in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return whole == part


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example['kind']}-{example['metadata']['name']}")
async def test_examples_are_taken_and_kept_whole(api, example) -> None:
    if example["kind"] != "QuotaSettings":  # there is only one
        example = named(example, f"kept-{example['metadata']['name']}")
    stored = await api.store(example)
    assert contains(stored.body, example), stored.body
    assert stored.warnings == []
    listed = await api.call("GET", api.path(example, named=False))
    assert example["metadata"]["name"] in [item["metadata"]["name"] for item in listed.body["items"]]


async def test_what_is_left_out_gets_its_default(api) -> None:
    assert (await api.create(project_quota())).body["spec"] == {
        **project_quota()["spec"],
        "enforcement": "deny",
        "warnAtPercent": 90,
    }
    of_a_project = await api.create(named(project_quota(subject={"name": "alpha"}, quota={}), "empty"))
    assert (of_a_project.status, of_a_project.body["spec"]["subject"]) == (201, {"kind": "project", "name": "alpha"})
    assert (await api.create(seed())).body["spec"] == {
        "kubeconfigSecretRef": {"name": "eu-1", "key": "kubeconfig"},
        "state": "Active",
    }
    await api.call("DELETE", api.path(settings()))  # there is only one, and another test may have made it
    assert (await api.create(settings({"quota": {"cpu": 1}}))).body["spec"] == {
        "defaults": {"project": {"quota": {"cpu": 1}, "enforcement": "deny", "warnAtPercent": 90}},
        "scaleCheck": "warn",
        "unknownProjects": "Deny",
    }


NOT_A_QUANTITY = "is not a quantity; write a number with an optional suffix, such as 4, 500m, 16Gi, 64G or 2e3"
KNOWN = (
    "known are cpu, memory, storage, machines, clusters, servers, gpus, names of core quotas such as pods and "
    "requests.cpu, names with a slash such as nvidia.com/gpu, and instances.TYPE with a machine type in lower case"
)
FIELD = "sum.databases.v1.example.com/spec.replicas"
INTEGER = "the number of objects or devices must be an integer, since they are counted"
OF_TENANTS = (
    "machines, storage, instances.TYPE, clusters, servers and gpus are for quotas of projects and organizations"
)
UNIT = "memory and storage are counted in bytes; write the unit"
NEGATIVE = "a limit cannot be negative; 0 allows none, and a resource that is not named is unlimited"
NEEDS_SELECTOR = "kind namespaces needs a selector, and only kind namespaces has one"
IN_C1 = {"kind": "project", "name": "alpha", "clusters": {"names": ["c1"]}}
NEEDS_NAME = "kinds project and organization need a name; kind namespaces has a selector instead of a name"
CONFIRM = 'set confirmLost: "its machines are gone"'
NAME = "lower case letters, digits, '-' and '.', with a letter or digit at both ends"


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (project_quota(quota={"cpu": "64x"}), "spec.quota[cpu]", f"64x {NOT_A_QUANTITY}"),
        (project_quota(quota={"memory": "16 Gi"}), "spec.quota[memory]", f"16 Gi {NOT_A_QUANTITY}"),
        (project_quota(quota={"memory": "Gi"}), "spec.quota[memory]", f"Gi {NOT_A_QUANTITY}"),
        (project_quota(quota={"cpu": ""}), "spec.quota[cpu]", NOT_A_QUANTITY),
        (project_quota(quota={"cpu": "1e999999999"}), "spec.quota[cpu]", f"1e999999999 {NOT_A_QUANTITY}"),
        (project_quota(quota={"cpu": 1.5}), "spec.quota.cpu", "must be of type integer,string"),
        (project_quota(quota={"cpu": True}), "spec.quota.cpu", "must be of type integer,string"),
        (project_quota(quota={"cpu": "9" * 33}), "spec.quota.cpu", "may not be more than 32"),
        (project_quota(quota={"cpu": -5}), "spec.quota[cpu]", f"-5: {NEGATIVE}"),
        (project_quota(quota={"memory": "-5Gi"}), "spec.quota[memory]", f"-5Gi: {NEGATIVE}"),
        (
            project_quota(quota={"memory": "512m"}),
            "spec",
            "memory: only cpu is counted in thousandths (m); for memory did you mean M or Mi?",
        ),
        (project_quota(quota={"machines": "1.5"}), "spec", INTEGER),
        (project_quota(quota={"nvidia.com/gpu": "0.5"}), "spec", INTEGER),
        (namespaces(quota={"pods": "1.5"}), "spec", INTEGER),
        (namespaces(quota={"pods": "1500u"}), "spec", INTEGER),
        (namespaces(quota={"count/configmaps": "0.5"}), "spec", INTEGER),
        (project_quota(quota={"memory": 5}), "spec", UNIT),
        (project_quota(quota={"storage": "64"}), "spec", UNIT),
        (namespaces(quota={"requests.memory": "1048575"}), "spec", UNIT),
        (allocation(**{"limits.memory": "64"}), "spec.allocation.hard", UNIT),
        (settings({"quota": {"memory": "64"}}), "spec.defaults.project", UNIT),
        (namespaces(quota={"pod": "5"}), "spec", "a resource that core quotas do not know: pod; known are pods,"),
        *(
            (namespaces(quota={f"sum.{name}": 5}), "spec", "write sum.RESOURCE.VERSION.GROUP/spec.FIELD")
            for name in ("databases.example.com/spec.a", "databases.v1.example.com/status.a", "example.com/gpu", "a")
        ),
        (namespaces(quota={"limits.hugepages-2Mi": "5"}), "spec", "do not know: limits.hugepages-2Mi;"),
        (allocation(pod="5"), "spec.allocation.hard", "hard names a resource that core quotas do not know: pod;"),
        (namespaces(quota={"machines": "5"}), "spec", "do not know: machines; known are pods,"),
        (namespaces(quota={"clusters": "5"}), "spec", OF_TENANTS),
        (allocation(servers="5"), "spec.allocation.hard", OF_TENANTS),
        (allocation(pods="1.5"), "spec.allocation.hard", INTEGER),
        (allocation(**{"requests.memory": "512m"}), "spec.allocation.hard", "requests.memory: only cpu is counted in"),
        (settings({"quota": {"pods": "1.5"}}), "spec.defaults.project", INTEGER),
        (settings({"quota": {"sum.a/spec.b": "5"}}), "spec.defaults.project", "write sum.RESOURCE.VERSION.GROUP/spec."),
        (settings({"quota": {"surge.a/b": "5"}}), "spec.defaults.project", "begins with 'surge.'"),
        (project_quota(quota={"cpus": "64"}), "spec", f"quota names an unknown resource: cpus; {KNOWN}"),
        (project_quota(quota={"pod": "64"}), "spec", "quota names an unknown resource: pod; known are"),
        (project_quota(quota={"instances.M5": "4"}), "spec", "unknown resource: instances.M5; known are"),
        (project_quota(quota={f"instances.{'x' * 54}": "4"}), "spec", f"unknown resource: instances.{'x' * 54};"),
        (project_quota(quota={"instances.m5.large": "1.5"}), "spec", INTEGER),
        (settings({"quota": {"instances.": "4"}}), "spec.defaults.project", "unknown resource: instances.; known are"),
        (project_quota(quota=None, quotas={"cpu": "64"}), "spec.quota", "Required value"),
        (project_quota(subject=None), "spec.subject", "Required value"),
        (
            project_quota(subject={"kind": "team", "name": "a"}),
            "spec.subject.kind",
            'supported values: "project", "organization", "namespaces"',
        ),
        (project_quota(subject={"kind": "project"}), "spec.subject", NEEDS_NAME),
        (
            project_quota(subject={"kind": "organization", "name": "a", "selector": {"matchLabels": {"a": "b"}}}),
            "spec.subject",
            NEEDS_SELECTOR,
        ),
        (project_quota(subject={"kind": "namespaces"}), "spec.subject", NEEDS_SELECTOR),
        (
            project_quota(subject=IN_C1, quota={"cpu": "8", "clusters": "2"}),
            "spec",
            "clusters, servers and gpus are in no cluster",
        ),
        (
            project_quota(subject={**IN_C1, "clusters": {"names": ["a/b/c"]}}),
            "spec.subject.clusters.names[0]",
            "must be the name of a cluster, such as c1",
        ),
        (
            project_quota(subject={**IN_C1, "clusters": {"names": []}}),
            "spec.subject.clusters.names",
            "should have at least 1 items",
        ),
        (
            project_quota(subject={"kind": "project", "name": "alpha", "seeds": {"names": ["EU"]}}),
            "spec.subject.seeds.names[0]",
            "must be the name of a Seed, such as eu-1",
        ),
        (
            project_quota(subject={"kind": "project", "name": "alpha", "seeds": {"matchLabels": {}}}),
            "spec.subject.seeds",
            "empty seeds would pick every Seed",
        ),
        (overridden({"memory": "1Gi"}), "spec", "overrides names a resource that quota does not limit"),
        (overridden({"cpu": "63"}), "spec", "an override is below the limit in quota"),
        (overridden({"cpu": 63}), "spec", "an override is below the limit in quota"),
        (overridden({"cpu": "many"}), "spec.overrides[0].quota[cpu]", "not a quantity"),
        (overridden({"cpu": "-1"}), "spec.overrides[0].quota[cpu]", "a limit cannot be negative"),
        (
            project_quota(overrides=[{"until": NOW, "quota": {"cpu": "128"}, "reason": "two\nlines"}]),
            "spec.overrides[0].reason",
            "should match",
        ),
        (overridden({}), "spec.overrides[0].quota", "should have at least 1 properties"),
        (overridden({"cpu": "128"}, until="tomorrow"), "spec.overrides[0].until", "must be of type date-time"),
        (
            overridden({"cpu": "128"}, until="2026-12-31T00:00:00"),
            "spec.overrides[0].until",
            "must be of type date-time",
        ),
        (overridden({"cpu": "128"}, until="2026-12-31T00:00:00.5Z"), "spec.overrides[0].until", "should match"),
        (
            project_quota(quota={"memory": 0}, overrides=[{"until": NOW, "quota": {"memory": "64000m"}}]),
            "spec",
            "only cpu is counted in thousandths",
        ),
        (
            resource(
                "ResourceQuota",
                "promised",
                {
                    "subject": {
                        "kind": "namespaces",
                        "selector": {"matchLabels": {"a": "b"}},
                        "counts": "ResourceQuotas",
                    },
                    "quota": {"pods": 1},
                    "overrides": [{"until": NOW, "quota": {"pods": 2}}],
                },
            ),
            "spec",
            "what ResourceQuotas promise has no overrides",
        ),
        (project_quota(scopes=["Terminating"]), "spec", "scopes are for what is in namespaces; limit cpu, memory"),
        (
            project_quota(quota={"pods": 4}, surge={"pods": 1}),
            "spec",
            "surge is for the machines of projects and organizations",
        ),
        (
            project_quota(subject={"kind": "project", "name": "alpha", "counts": "ResourceQuotas"}),
            "spec.subject",
            "only kind namespaces has counts",
        ),
        (notification(events=[]), "spec.events", "should have at least 1 items"),
        (notification(events=["Overflow"]), "spec.events[0]", "supported values"),
        (notification(form="teams"), "spec.form", "supported values"),
        (notification(secretRef={}), "spec.secretRef.name", "Required value"),
        (notification(secretRef={"name": "../x"}), "spec.secretRef.name", "should match"),
        (allocation(pods="-1"), "spec.allocation.hard[pods]", "a limit cannot be negative"),
        (allocation(pods="many"), "spec.allocation.hard[pods]", "not a quantity"),
        (allocation(), "spec.allocation.hard", "should have at least 1 properties"),
        (allocation(**{"surge.cpu": "1"}), "spec.allocation.hard", "no resource has a name that begins with 'surge.'"),
        (named(allocation(pods="1"), "a" * 201), "metadata.name", "an allocation's name has at most 200 characters"),
        (
            namespaces(scopeSelector={"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}),
            "spec.scopeSelector.matchExpressions[0]",
            "operators In and NotIn need values; Exists and DoesNotExist take none",
        ),
        (
            namespaces(scopeSelector={"matchExpressions": [{"scopeName": "BestEffort", "operator": "DoesNotExist"}]}),
            "spec.scopeSelector.matchExpressions[0]",
            "only PriorityClass and VolumeAttributesClass have values",
        ),
        (
            cluster("c1", {"project": "alpha", "namespaceQuotas": "Enabled"}),
            "spec",
            "namespaceQuotas needs kubeconfigSecretRef",
        ),
        (
            project_quota(subject={"kind": "namespaces", "selector": {}}),
            "spec.subject.selector",
            "an empty selector would pick every namespace; give matchLabels or matchExpressions",
        ),
        (
            project_quota(
                subject={"kind": "namespaces", "selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}
            ),
            "spec.subject.selector.matchExpressions[0]",
            "operators In and NotIn need values; Exists and DoesNotExist take none",
        ),
        *(
            (
                project_quota(subject={"kind": "namespaces", "selector": {"matchLabels": {key: "b"}}}),
                "spec.subject.selector.matchLabels",
                f'"{key}" cannot be the key of a label, such as owner or example.com/owner',
            )
            for key in ("Owner Ann", "", "a/", "example..com/a", "a/b/c", "a" * 64)
        ),
        (
            project_quota(
                subject={"kind": "namespaces", "selector": {"matchExpressions": [{"key": "a b", "operator": "Exists"}]}}
            ),
            "spec.subject.selector.matchExpressions[0].key",
            "must be the key of a label, such as owner or example.com/owner",
        ),
        *(
            (project_quota(subject={"kind": "namespaces", "selector": selector}), where, "must be a label's value")
            for selector, where in (
                ({"matchLabels": {"a": "b c"}}, "spec.subject.selector.matchLabels[a]"),
                (
                    {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c-"]}]},
                    "spec.subject.selector.matchExpressions[0].values[1]",
                ),
            )
        ),
        (project_quota(subject={"kind": "project", "name": "Alpha"}), "spec.subject.name", NAME),
        (
            project_quota(surge={"machines": 1}),
            "spec",
            "surge names machines, which quota does not limit; what is unlimited needs no surge",
        ),
        (
            project_quota(subject={"kind": "organization", "name": "acme"}, guaranteed={"cpu": "4"}),
            "spec",
            "guaranteed is for quotas of projects",
        ),
        (
            project_quota(
                subject={"kind": "project", "name": "alpha", "seeds": {"names": ["eu-1"]}}, guaranteed={"cpu": "4"}
            ),
            "spec",
            "guaranteed is for quotas of all that a project has",
        ),
        (
            project_quota(guaranteed={"machines": 1}),
            "spec",
            "guaranteed names machines, which quota does not limit",
        ),
        (
            project_quota(quota={"pods": 4}, guaranteed={"pods": 1}),
            "spec",
            "guaranteed is for machines, clusters and Allocations; objects in namespaces have no guarantee",
        ),
        (project_quota(quota={"cpu": "4"}, guaranteed={"cpu": "5"}), "spec", "guaranteed is more than the limit in"),
        (project_quota(guaranteed={"cpu": "-4"}), "spec.guaranteed[cpu]", "a guaranteed amount cannot be negative"),
        (project_quota(quota={"guaranteed.a/cpu": "4"}), "spec", "begin with 'guaranteed.' are taken"),
        (project_quota(surge={"cpu": "-4"}), "spec.surge[cpu]", "a surge cannot be negative"),
        (project_quota(surge={"cpu": "4x"}), "spec.surge[cpu]", NOT_A_QUANTITY.removeprefix("is ")),
        (project_quota(surge={}), "spec.surge", "should have at least 1 properties"),
        (
            project_quota(subject={"kind": "namespaces", "selector": {"matchLabels": {"a": "b"}}}, surge={"cpu": "4"}),
            "spec",
            "surge is for the machines of projects and organizations",
        ),
        (project_quota(enforcement="block"), "spec.enforcement", 'supported values: "deny", "warn"'),
        (project_quota(warnAtPercent=0), "spec.warnAtPercent", "greater than or equal to 1"),
        (project_quota(warnAtPercent=101), "spec.warnAtPercent", "less than or equal to 100"),
        (seed(state="Lost"), "spec", CONFIRM),
        (seed(state="Lost", confirmLost="yes"), "spec", CONFIRM),
        (seed(state="Paused"), "spec.state", 'supported values: "Active", "Draining", "Lost"'),
        (seed(kubeconfigSecretRef={}), "spec.kubeconfigSecretRef.name", "Required value"),
        (resource("Seed", "eu-1", {}), "spec", "set either kubeconfigSecretRef"),
        (resource("Seed", "eu-1", {"state": "Active"}), "spec", "set either kubeconfigSecretRef"),
        (resource("Seed", "eu-1", {"inCluster": False}), "spec", "set either kubeconfigSecretRef"),
        (seed(inCluster=True), "spec", "set either kubeconfigSecretRef"),
        (seed(copyOf="uid"), "spec", "set either kubeconfigSecretRef"),
        (named(seed(), "e" * 64), "metadata.name", "a seed's name has at most 63 characters"),
        (
            project("a", {"organization": "Acme Inc"}),
            "spec.organization",
            "must be the metadata.name of an Organization",
        ),
        (project("a" * 64, {}), "metadata.name", "a project's name has at most 63 characters"),
        (resource("Organization", "a.b", {}), "metadata.name", "at most 59 characters and no dots"),
        (named(settings(), "other"), "metadata.name", "there is one QuotaSettings, and its name is default"),
        (settings({}), "spec.defaults.project.quota", "Required value"),
        (settings({"quota": {}}), "spec.defaults.project.quota", "should have at least 1 properties"),
        (settings({"quota": {"cpu": "64x"}}), "spec.defaults.project.quota[cpu]", f"64x {NOT_A_QUANTITY}"),
        (settings({"quota": {"cpu": "-1"}}), "spec.defaults.project.quota[cpu]", f"-1: {NEGATIVE}"),
        (settings({"quota": {"cpus": 1}}), "spec.defaults.project", f"quota names an unknown resource: cpus; {KNOWN}"),
        (
            settings({"quota": {"machines": "0.5"}}),
            "spec.defaults.project",
            INTEGER,
        ),
        (
            settings({"quota": {"memory": "512m"}}),
            "spec.defaults.project",
            "memory: only cpu is counted in thousandths (m); for memory did you mean M or Mi?",
        ),
        (
            settings({"quota": {"cpu": 1}, "enforcement": "block"}),
            "spec.defaults.project.enforcement",
            'supported values: "deny", "warn"',
        ),
        (settings(scaleCheck="no"), "spec.scaleCheck", 'supported values: "warn", "deny", "off"'),
        (settings(unknownProjects="deny"), "spec.unknownProjects", 'supported values: "Deny", "Allow"'),
        (settings(overcommit="0.5"), "spec.overcommit", "a number from 1 to 1000"),
        (settings(overcommit=1001), "spec.overcommit", "a number from 1 to 1000"),
        (settings(overcommit="2x"), "spec.overcommit", "a number from 1 to 1000"),
        (counted("licences", "Objects"), "spec.resources[0].name", "names with a slash such as example.com/licences"),
        (
            counted("clusters", "Both"),
            "spec.resources[0].countFrom",
            'supported values: "Allocations", "Objects"',
        ),
        (
            counted("machines", "Allocations"),
            "spec.resources[0]",
            "cpu, memory, storage and machines are counted from the Machines themselves; countFrom must be Objects",
        ),
        (
            counted("count/deployments.apps", "Allocations"),
            "spec.resources[0]",
            "what is in namespaces is counted from the objects themselves; countFrom must be Objects",
        ),
        (
            cluster("a", {"project": "alpha", "namespaceProjects": "Label"}),
            "spec.namespaceProjects",
            'supported values: "FromCluster", "FromLabel"',
        ),
        (cluster("a", {}), "spec.project", "Required value"),
        (cluster("a", {"project": "-a"}), "spec.project", NAME),
        (
            of_organization(resources=[allocated("servers", -1)]),
            "spec.resources[0].committed",
            "greater than or equal to 0",
        ),
        (
            of_organization(resources=[allocated("servers", 0, 2**53)]),
            "spec.resources[0].reserved",
            "less than or equal to 9007199254740991",
        ),
        (
            of_organization(resources=[allocated("servers", 1), allocated("servers", 2)]),
            "spec.resources[1]",
            "Duplicate value",
        ),
        (of_organization(project="-a"), "spec.project", NAME),
        (of_organization(id="a b"), "spec.id", "must be letters, digits, '-', '_', '.', ':' and '/'"),
    ],
)
async def test_a_mistake_is_refused_with_a_message_that_says_what_to_do(api, body, field, message) -> None:
    answer = await api.create(body)
    assert answer.status == 422
    assert message in answer.causes[field]


async def test_bytes_need_no_unit_where_none_was_forgotten(api) -> None:
    limits = {"memory": 0, "storage": "1048576", "example.com/a": 5, "cpu": 5}
    gigabytes = named(namespaces(quota={"sum.databases.v1.example.com/spec.storage": 100}), "gigabytes")
    assert (await api.create(gigabytes)).status == 201
    assert (await api.create(named(project_quota(quota=limits), "bytes"))).status == 201
    assert (await api.create(named(project_quota(quota={"memory": "5k", "storage": "0"}), "small"))).status == 201


async def test_every_name_that_core_quotas_know_is_taken(api) -> None:
    fields = ("sum.databases.v1.example.com/spec.replicas", "sum.a-b.v1beta2.x.y.z/spec.disk.max-size")
    further = (*fields, "hugepages-2Mi", "requests.hugepages-1Gi", "count/deployments.apps", "requests.nvidia.com/gpu")
    known = dict.fromkeys([*object_names.PLAIN, *further], "1M")
    assert (await api.create(named(namespaces(quota=known), "every-name"))).status == 201
    assert (await api.create(named(allocation(**known), "every-name"))).status == 201
    scoped = {"count/pods": 1, "pods": 2, "requests.cpu": "4", "hugepages-2Mi": "4Mi"}
    for kind in ("project", "organization"):
        subject = {"kind": kind, "name": "alpha"}
        everything = project_quota(subject=subject, quota={**known, FIELD: 3, "cpu": 4, "machines": 2, "servers": 1})
        assert (await api.create(named(everything, f"every-name-of-{kind}"))).status == 201
        of_objects = project_quota(subject=subject, quota=scoped, scopes=["NotTerminating"])
        assert (await api.create(named(of_objects, f"scoped-{kind}"))).status == 201


@pytest.mark.parametrize("system", MIGRATED)
async def test_what_was_migrated_is_taken(api, system) -> None:
    translate, text = MIGRATED[system]
    for found in translate(manifests.documents(text, system)).objects:
        answer = await api.call("POST", f"{api.path(found, named=False)}?dryRun=All", found)
        if found["kind"] == "Allocation":  # its namespace is made for the Organization
            assert answer.status == 404 and "namespaces" in answer.message
        elif answer.status != 409:
            assert (answer.status, answer.warnings) == (201, []), answer.body


LOST = seed(state="Lost", confirmLost="its machines are gone")
IMMUTABLE_SUBJECT = "the subject cannot be changed; create another quota for the other subject, then delete this one"
IMMUTABLE_SCOPES = "scopes cannot be changed; create another quota with the other scopes, then delete this one"
IMMUTABLE_CLUSTERS = "clusters cannot be changed; create another allocation for the other clusters"
IMMUTABLE_SEEDS = "seeds cannot be changed; create another allocation for the other seeds"
IMMUTABLE_ORGANIZATION = "a project's organization can be set once and not be changed or removed later"
NO_WAY_BACK = "a lost seed never comes back; delete this Seed and add the cluster again under a new name"


@pytest.mark.parametrize(
    ("before", "patch", "field", "message"),
    [
        (named(project_quota(), "s1"), {"subject": {"name": "beta"}}, "spec.subject", IMMUTABLE_SUBJECT),
        (named(project_quota(), "s2"), {"subject": {"kind": "organization"}}, "spec.subject", IMMUTABLE_SUBJECT),
        (
            named(project_quota(), "s3"),
            {"subject": {"kind": "namespaces", "name": None, "selector": {"matchLabels": {"a": "b"}}}},
            "spec.subject",
            IMMUTABLE_SUBJECT,
        ),
        (
            cluster("p1", {"project": "alpha"}),
            {"project": "beta"},
            "spec.project",
            "a cluster's project cannot be changed",
        ),
        (
            project("o1", {"organization": "acme"}),
            {"organization": "other"},
            "spec.organization",
            IMMUTABLE_ORGANIZATION,
        ),
        (project("o2", {"organization": "acme"}), {"organization": None}, "spec.organization", IMMUTABLE_ORGANIZATION),
        (project("o3", {"organization": "acme"}), None, "spec.organization", IMMUTABLE_ORGANIZATION),
        (
            named(namespaces(), "s4"),
            {"subject": {"clusters": {"matchLabels": {"tier": "dev"}}}},
            "spec.subject",
            IMMUTABLE_SUBJECT,
        ),
        (named(namespaces(), "s5"), {"subject": {"clusters": None}}, "spec.subject", IMMUTABLE_SUBJECT),
        (named(namespaces(), "s6"), {"scopes": ["Terminating"]}, "spec", IMMUTABLE_SCOPES),
        (named(namespaces(), "s7"), {"scopeSelector": None}, "spec", IMMUTABLE_SCOPES),
        (named(namespaces(), "s9"), {"subject": {"seeds": {"names": ["eu-1"]}}}, "spec.subject", IMMUTABLE_SUBJECT),
        (allocation(pods="1"), {"clusters": {"matchLabels": {"tier": "prod"}}}, "spec", IMMUTABLE_CLUSTERS),
        (named(allocation(pods="1"), "s10"), {"seeds": {"names": ["eu-1"]}}, "spec", IMMUTABLE_SEEDS),
        (
            named(overridden({"cpu": "128"}), "s8"),
            {"overrides": [{"until": NOW, "quota": {"cpu": "32"}}]},
            "spec",
            "an override is below the limit in quota",
        ),
        (named(LOST, "l1"), {"state": "Active", "confirmLost": None}, "spec", NO_WAY_BACK),
        (named(LOST, "l2"), {"state": None}, "spec", NO_WAY_BACK),
        (named(LOST, "l3"), {"confirmLost": None}, "spec", CONFIRM),
        (
            of_organization("i1"),
            {"organization": "b"},
            "spec.organization",
            "an allocation's organization cannot be changed",
        ),
        (of_organization("i2"), {"project": "beta"}, "spec.project", "an allocation's project cannot be changed"),
        (of_organization("i3"), {"kind": "server"}, "spec.kind", "an allocation's kind cannot be changed"),
        (of_organization("i4"), {"id": "other"}, "spec.id", "an allocation's id cannot be changed"),
    ],
)
async def test_what_may_not_change_stays_as_it_is(api, before, patch, field, message) -> None:
    await api.store(before)
    answer = await api.patch(before, {"spec": patch})
    assert answer.status == 422
    assert message in answer.causes[field]


@pytest.mark.parametrize(
    ("before", "patch"),
    [
        (named(project_quota(), "c1"), {"quota": {"cpu": "0", "memory": "1Gi"}, "enforcement": "warn"}),
        (
            named(
                project_quota(
                    subject={"kind": "namespaces", "selector": {"matchLabels": {"a": "b"}}}, quota={"pods": 1}
                ),
                "c2",
            ),
            {"subject": {"selector": {"matchLabels": {"a": "c"}}}},
        ),
        (named(overridden({"cpu": "128"}), "c12"), {"quota": {"cpu": "256"}}),
        (named(overridden({"cpu": "128"}), "c13"), {"quota": {"cpu": None, "memory": "1Gi"}}),
        (named(overridden({"cpu": "128"}), "c14"), {"overrides": [{"until": NOW, "quota": {"cpu": 64}}]}),
        (named(overridden({"cpu": "128"}), "c15"), {"overrides": None}),
        (named(namespaces(), "c7"), {"subject": {"selector": {"matchLabels": {"a": "c"}}}, "quota": {"pods": 1}}),
        (cluster("c8", {**REACHED, "namespaceQuotas": "Enabled"}), {"namespaceQuotas": "Disabled"}),
        (named(seed(), "c9"), {"namespaceQuotas": "Enabled"}),
        (project("c3", {"organization": "acme"}), {"displayName": "Other"}),
        (project("o4", {}), {"organization": "acme"}),
        (cluster("c4", {"project": "alpha"}), {"kubeconfigSecretRef": {"name": "rotated"}}),
        (named(seed(), "c5"), {"state": "Lost", "confirmLost": "its machines are gone"}),
        (named(seed(state="Draining"), "c6"), {"state": "Active"}),
        (of_organization("c10"), {"resources": [allocated("clusters", 2**53 - 1, 2**53 - 1)]}),
        (of_organization("c11"), {"resources": []}),
    ],
)
async def test_what_may_change_can_be_changed(api, before, patch) -> None:
    await api.store(before)
    assert (await api.patch(before, {"spec": patch})).status == 200


async def test_a_limit_the_api_server_takes_is_one_we_can_read_and_the_other_way_round(api) -> None:
    rows = GOLDEN.read_text(encoding="utf-8").splitlines()
    texts = [text for text in (json.loads(row.split("\t")[0]) for row in rows) if len(text) <= 32 and text[:1] != "-"]
    for start in range(0, len(texts), 64):
        limits = {f"requests.example.com/{i}.cpu": text for i, text in enumerate(texts[start : start + 64])}
        answer = await api.create(project_quota(quota=limits))
        refused = set(answer.causes) if answer.status == 422 else set()
        assert refused == {f"spec.quota[{name}]" for name, text in limits.items() if not readable(text)}


def named_limits(count: int, characters: int) -> dict:
    """So many names, with so many characters together."""
    each, more = divmod(characters, count)
    sizes = [each + (number < more) for number in range(count)]
    return {f"example.com/{number:03}".ljust(size, "n"): "9" * 29 for number, size in enumerate(sizes)}


@pytest.mark.parametrize("quota", [named_limits(64, 4096), named_limits(1, 317)], ids=["together", "one"])
async def test_names_of_resources_may_be_as_long_as_this(api, quota) -> None:
    for body in (project_quota(quota=quota), settings({"quota": quota})):
        await api.call("DELETE", api.path(settings()))
        answer = await api.create(body)
        assert answer.status == 201, answer.body


@pytest.mark.parametrize(
    ("quota", "message"),
    [
        (named_limits(64, 4097), "the names of resources in quota have more than 4096 characters together"),
        (named_limits(1, 318), "a name of a resource in quota is longer than 317 characters"),
    ],
    ids=["together", "one"],
)
async def test_and_no_longer(api, quota, message) -> None:
    for body, field in ((project_quota(quota=quota), "spec"), (settings({"quota": quota}), "spec.defaults.project")):
        await api.call("DELETE", api.path(settings()))
        answer = await api.create(body)
        assert answer.status == 422, answer.body
        assert message in answer.causes[field]


async def test_the_status_of_a_quota_takes_all_that_the_programs_can_say_of_it(api) -> None:
    """Limits with names as long as they may be, counters with all the names that they can have, seeds, and surge."""
    limits = named_limits(64, 4096)
    few = dict.fromkeys(list(limits)[:16], "1")
    body = named(project_quota(quota=limits, surge=few), "all-that-can-be-said")
    await api.store(body)
    amount = "9" * 35
    prefix = f"{'p' * 63}.{'p' * 63}.{'p' * 63}"
    counters = {f"{prefix}.{number:061}/{'n' * 63}": amount for number in range(MAX_COUNTERS)}
    ceilings = dict.fromkeys([*limits, *(f"surge.{name}" for name in few)], amount)
    limited = dict.fromkeys(limits, amount)
    kept = (
        ceilings | counters | {f"{name}/x": amount for name in BASE} | {f"few.com/{n}": amount for n in range(FURTHER)}
    )
    reserved = counters | {f"surge.x/{number}": amount for number in range(80)}
    ask = {"number": 1, "first": ceilings, "wanted": ceilings}
    master = {
        "hard": limited,
        "globalUsage": ceilings,
        "reserved": ceilings,
        "surge": {"hard": few, "used": few},
        "overrides": [{"until": NOW, "quota": few, "reason": "r" * 256, "state": "Ended"}] * 8,
        "summary": {
            "subject": "project/alpha",
            "usage": usage_text(resources.parse(limited), resources.parse(limits)),
            "peak": peak_text(resources.parse(limited), resources.parse(limits)),
        },
        "seeds": [{"name": f"seed-{number}", "localUsage": limited, "granted": limited} for number in range(32)],
        "grant": {
            "granted": counters,
            "returned": counters,
            "recall": counters,
            "raised": limited,
            "unavailable": [{"seed": f"seed-{number}", "idle": limited} for number in range(32)],
        },
    }
    account = {"granted": counters, "returned": counters, "used": kept, "reserved": reserved, "ask": ask}
    for manager, status in (("master", master), ("seed", {"account": account, "localUsage": ceilings})):
        answer = await apply_status(api, body, manager, status)
        assert answer.status == 200, answer.body
        assert contains(answer.body["status"], status)


def readable(text: str) -> bool:
    try:
        return parse(text) < parse("1e30")
    except QuantityError:
        return False


async def columns(api, example: dict) -> list[dict[str, object]]:
    """What `kubectl get -o wide` prints for the object and, before its status was written, for a new one."""
    bare = {part: example[part] for part in ("apiVersion", "kind", "metadata", "spec") if part in example}
    new, used = named(bare, f"new-{example['kind'].lower()}"), named(example, f"used-{example['kind'].lower()}")
    printed = []
    for body in (new, used):
        await api.store(copy.deepcopy(body))
        table = await api.call(
            "GET", api.path(body), accept="application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
        )
        assert table.body["kind"] == "Table"
        names = [column["name"] for column in table.body["columnDefinitions"]]
        printed.append(dict(zip(names, table.body["rows"][0]["cells"], strict=True)))
    wide = {column["name"]: column["priority"] for column in table.body["columnDefinitions"]}
    return [*printed, wide]


def age(cell: object) -> bool:
    return isinstance(cell, str) and re.fullmatch(r"<invalid>|(\d+[smhdy])+", cell) is not None


@pytest.mark.parametrize(
    ("kind", "expected", "wide"),
    [
        (
            "ResourceQuota",
            {
                "Subject": "project/alpha",
                "Usage": "cpu 60/64, memory 232Gi/256Gi, storage 1Ti/4Ti",
                "Peak": "cpu 93%",
                "Ready": "True",
                "Enforced": "True",
                "Current": "False",
                "Age": age,
                "Enforcement": "deny",
                "Raised-Until": None,
                "Guaranteed": None,
                "Seeds": "2/2",
            },
            ["Enforcement", "Raised-Until", "Guaranteed", "Seeds"],
        ),
        ("Organization", {"Display": "Acme", "Projects": 3, "Usage": "clusters 3/5", "Ready": "True"}, []),
        (
            "Project",
            {"Organization": "acme", "Quota": "project-alpha", "Usage": "cpu 60/64", "Ready": "True"},
            [],
        ),
        (
            "Seed",
            {"State": "Active", "Ready": "False", "Clusters": 210, "Fenced": 0, "Version": "0.2.0", "Last-Seen": age},
            [],
        ),
        (
            "UserCluster",
            {
                "Project": "alpha",
                "Machines": 12,
                "Usage": "cpu 24, memory 96Gi",
                "Ready": "True",
                "Enforced": "Unknown",
                "Unadmitted": 3,
                "Counted": age,
            },
            ["Unadmitted"],
        ),
        (
            "ResourceQuotaAllocation",
            {"Allocated": "pods 30/50", "Namespaces": 5, "Ready": "True", "Age": age},
            [],
        ),
        (
            "QuotaNotification",
            {
                "Form": "slack",
                "Events": lambda cell: "NearLimit" in str(cell),
                "Ready": "True",
                "Delivered": "True",
                "Last": age,
                "Age": age,
            },
            [],
        ),
        (
            "QuotaLedger",
            {
                "Quota": "project-alpha",
                "Held": "cpu=44",
                "Used": "cpu=40",
                "Reserved": "cpu=2",
                "State": "Open",
                "Epoch": 3,
            },
            [],
        ),
    ],
)
async def test_kubectl_get_prints_the_promised_columns(api, kind, expected, wide) -> None:
    example = next(example for example in EXAMPLES if example["kind"] == kind)
    new, used, priorities = await columns(api, example)
    assert list(used) == ["Name", *expected] == list(new)
    for name, value in expected.items():
        assert value(used[name]) if callable(value) else used[name] == value, (name, used[name])
    assert [name for name, priority in priorities.items() if priority > 0] == wide


async def test_kubectl_get_prints_the_defaults(api) -> None:
    body = settings({"quota": {"cpu": "16"}}, scaleCheck="deny")
    answer = await api.call(
        "PATCH", f"{api.path(body)}?fieldManager=test&force=true", body, content_type="application/apply-patch+yaml"
    )
    assert answer.status in (200, 201), answer.body
    table = (await api.call("GET", api.path(body), accept="application/json;as=Table;v=v1;g=meta.k8s.io")).body
    names = [column["name"] for column in table["columnDefinitions"]]
    assert names == ["Name", "Project", "Organization", "Scale-Check", "Age"]
    cells = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert '"cpu":"16"' in cells["Project"]
    assert cells["Scale-Check"] == "deny"


async def apply_status(api, body: dict, manager: str, status: dict, *, force: bool = False):
    return await api.call(
        "PATCH",
        f"{api.path(body)}/status?fieldManager={manager}&force={str(force).lower()}",
        {key: body[key] for key in ("apiVersion", "kind", "metadata")} | {"status": status},
        content_type="application/apply-patch+yaml",
    )


async def test_master_and_seed_own_their_own_fields_of_a_copy_and_cheaply(api) -> None:
    body = named(project_quota(), "owned")
    await api.store(body)
    example = next(example for example in EXAMPLES if example["metadata"]["name"] == "example-on-a-seed")
    parts = {
        "master": {
            "grant": example["status"]["grant"],
            "globalUsage": {"cpu": "60"},
            "conditions": [ready("Exceeded")],
        },
        "seed": {
            "account": example["status"]["account"],
            "localUsage": {"cpu": "42"},
            "conditions": [ready("Enforced")],
        },
    }
    for manager, status in [*parts.items(), ("master", {"grant": {"incarnation": "m-2"}})]:
        answer = await apply_status(api, body, manager, status)
        assert answer.status == 200, answer.body
    status = answer.body["status"]
    assert status == {**parts["seed"], "grant": {"incarnation": "m-2"}}
    owned = {entry["manager"]: entry["fieldsV1"].get("f:status") for entry in answer.body["metadata"]["managedFields"]}
    assert owned["master"] == {"f:grant": {}}
    assert owned["seed"]["f:account"] == {}


async def test_where_owners_are_forgotten_with_an_edit_each_side_still_replaces_its_own_part_whole(api) -> None:
    body = named(project_quota(), "owners-forgotten")
    await api.store(body)

    async def applied(manager: str, status: dict) -> dict:
        answer = await apply_status(api, body, manager, status, force=True)
        assert answer.status == 200, answer.body
        return answer.body

    account = {"incarnation": "a-1", "granted": {"cpu": "8"}, "used": {"cpu": "2"}}
    grant = {"incarnation": "m-1", "granted": {"cpu": "8"}, "recall": {"cpu": "4"}}
    for _ in range(2):
        await applied("master", {"grant": grant, "hard": {"cpu": "64", "memory": "1Gi"}})
        there = await applied("seed", {"account": account, "localUsage": {"cpu": "2"}})
        edited = {**there, "spec": {**there["spec"], "quota": {"cpu": "32"}}}
        edited["metadata"] = {**there["metadata"], "managedFields": [{}]}
        answer = await api.call("PUT", api.path(body), edited)
        assert (answer.status, answer.body["status"]) == (200, there["status"])
        assert "managedFields" not in answer.body["metadata"]
        now = await applied("master", {"grant": {"incarnation": "m-1", "granted": {"cpu": "8"}}, "hard": {"cpu": "32"}})
        assert now["status"] == {
            "grant": {"incarnation": "m-1", "granted": {"cpu": "8"}},
            "hard": {"cpu": "32"},
            "account": account,
            "localUsage": {"cpu": "2"},
        }
        now = await applied("seed", {"account": {"incarnation": "a-1", "granted": {"cpu": "8"}}, "localUsage": {}})
        assert now["status"]["account"] == {"incarnation": "a-1", "granted": {"cpu": "8"}}
        assert now["status"]["hard"] == {"cpu": "32"}


async def test_managers_own_whole_conditions_side_by_side_and_take_only_their_own_away(api) -> None:
    body = named(project_quota(), "conditions-of-two")
    await api.store(body)

    async def applied(manager: str, *conditions: dict) -> tuple[int, dict[str, dict]]:
        answer = await apply_status(api, body, manager, {"conditions": conditions})
        found = answer.body["status"]["conditions"] if answer.status == 200 else []
        return answer.status, {each["type"]: each for each in found}

    enforced, near = ready("Enforced"), ready("NearLimit")
    await applied("master", enforced, near)
    assert await applied("seed", ready("Exceeded")) == (
        200,
        {"Enforced": enforced, "NearLimit": near, "Exceeded": ready("Exceeded")},
    )
    assert (await applied("seed", ready("Exceeded"), ready("Enforced", "False")))[0] == 409
    assert (await applied("seed", ready("Exceeded", "False")))[1]["Exceeded"]["status"] == "False"
    generation = {**enforced, "observedGeneration": 2}
    assert (await applied("master", generation))[1].keys() == {"Enforced", "Exceeded"}
    # Of a condition that has one field less, that field goes.
    assert (await applied("master", enforced))[1] == {"Enforced": enforced, "Exceeded": ready("Exceeded", "False")}
    assert (await applied("seed"))[1] == {"Enforced": enforced}
    read = await api.call("GET", api.path(body))
    owned = {entry["manager"]: entry["fieldsV1"].get("f:status") for entry in read.body["metadata"]["managedFields"]}
    assert owned["master"] == {"f:conditions": {'k:{"type":"Enforced"}': {}}}


async def test_every_kind_has_its_short_names_and_one_category(api) -> None:
    answer = await api.call("GET", f"/apis/{API_VERSION}")
    kinds = {entry["kind"]: entry for entry in answer.body["resources"] if "/" not in entry["name"]}
    assert {kind: entry["shortNames"] for kind, entry in kinds.items()} == {
        "ResourceQuota": ["seedquota", "seedquotas", "sq"],
        "ResourceQuotaAllocation": ["sqa"],
        "Allocation": ["alloc"],
        "Organization": ["sqo"],
        "QuotaNotification": ["sqn"],
        "Project": ["sqp"],
        "Seed": ["sqseed"],
        "UserCluster": ["uc"],
        "QuotaLedger": ["sql"],
        "QuotaSettings": ["sqset"],
        "LocalResourceQuota": ["lsq"],
        "LocalResourceQuotaAllocation": ["lsqa"],
    }
    assert all(entry["categories"] == ["seedquota-all"] for entry in kinds.values())
    subresources = {entry["name"] for entry in answer.body["resources"] if "/" in entry["name"]}
    assert subresources == {
        f"{entry['name']}/status"
        for kind, entry in kinds.items()
        if not kind.startswith("Local") and kind not in {"QuotaLedger", "QuotaSettings", "Allocation"}
    }  # a ledger and what is shown to tenants are written whole, in one write; the others say nothing back


def schemas(schema: dict, path: str) -> Iterator[tuple[str, dict]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield from schemas(schema[keyword], f"{path}[]")


def test_kubectl_explain_has_something_to_say_about_every_field(definitions) -> None:
    silent = [
        path
        for kind, definition in definitions.items()
        for path, schema in schemas(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], kind)
        if "description" not in schema and not path.endswith("[]") and ".metadata" not in path
    ]
    assert silent == []


def texts(node: object) -> Iterator[str]:
    """Everything in a manifest that people read."""
    if isinstance(node, list):
        for child in node:
            yield from texts(child)
    elif isinstance(node, dict):
        for name, child in node.items():
            if name in {"description", "message", "messageExpression"} and isinstance(child, str):
                yield child
            else:
                yield from texts(child)


def test_no_text_calls_a_quota_by_the_name_that_means_the_core_kind_to_kubectl() -> None:
    files = [path for folder in ("crds", "rbac") for path in sorted((CHARTS / folder).glob("*.yaml"))]
    found = [text for path in files for text in texts(list(yaml.safe_load_all(path.read_text())))]
    assert len(found) > 100
    said = [text.replace("'resourcequotas'", "") for text in found]  # the name of a resource, in an expression
    assert [text for text in said if "resourcequota" in text] == []
