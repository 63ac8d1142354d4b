"""Quotas of other systems as ours, and what is said of those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.__main__ import run
from cli.migration import kkp, manifests, namespaces, unikorn
from cli.outcome import Failed

KKP = """\
apiVersion: v1
kind: List
items:
- apiVersion: kubermatic.k8c.io/v1
  kind: ResourceQuota
  metadata: {name: project-tjqjkphnm6, uid: x}
  spec:
    quota: {cpu: "64", memory: 256Gi, storage: 4Ti, accelerators: [{provider: kubevirt}]}
    subject: {kind: project, name: tjqjkphnm6}
  status: {globalUsage: {cpu: "3"}}
- apiVersion: kubermatic.k8c.io/v1
  kind: ResourceQuota
  metadata: {name: default, labels: {kkp-default-resource-quota: "true"}}
  spec: {quota: {cpu: 8}, subject: {kind: project, name: other}}
- apiVersion: kubermatic.k8c.io/v1
  kind: KubermaticSetting
  metadata: {name: globalsettings}
  spec: {defaultQuota: {quota: {cpu: 8}}, displayTermsOfService: false}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: cores}
"""
UNIKORN = """\
apiVersion: identity.unikorn-cloud.org/v1alpha1
kind: Quota
metadata: {name: q, labels: {unikorn-cloud.org/organization: 9a8c}}
spec: {quotas: [{kind: clusters, quantity: 5}, {kind: gpus, quantity: "40"}, {kind: clusters, quantity: many}]}
---
apiVersion: identity.unikorn-cloud.org/v1alpha1
kind: Project
metadata: {name: 77ab, labels: {unikorn-cloud.org/name: web, unikorn-cloud.org/organization: 9a8c}}
---
apiVersion: identity.unikorn-cloud.org/v1alpha1
kind: Organization
metadata: {name: 9a8c, labels: {unikorn-cloud.org/name: acme}}
---
apiVersion: identity.unikorn-cloud.org/v1alpha1
kind: QuotaMetadata
metadata: {name: clusters}
spec: {default: 3, displayName: Clusters, description: All}
---
apiVersion: identity.unikorn-cloud.org/v1alpha1
kind: QuotaMetadata
metadata: {name: servers}
spec: {default: 10, displayName: Servers, description: Physical servers}
---
apiVersion: identity.unikorn-cloud.org/v1alpha1
kind: Allocation
metadata:
  name: a
  labels:
    unikorn-cloud.org/organization: 9a8c
    unikorn-cloud.org/project: 77ab
    resource.unikorn-cloud.org/kind: kubernetescluster
    resource.unikorn-cloud.org/id: c-1
spec:
  allocations:
  - {kind: clusters, committed: "1", reserved: "0"}
  - {kind: servers, committed: "3", reserved: "2"}
  - {kind: floatingips, committed: "3", reserved: "0"}
---
apiVersion: identity.unikorn-cloud.org/v1alpha1
kind: Allocation
metadata: {name: of-nothing}
---
apiVersion: identity.unikorn-cloud.org/v1alpha1
kind: Quota
metadata: {name: of-nobody}
spec: {quotas: [{kind: clusters, quantity: 5}]}
"""


def translated(system: Any, text: str) -> tuple[list[Any], list[str]]:
    found = system(manifests.documents(text, "f"))
    return [(each["kind"], each["metadata"]["name"], each.get("spec")) for each in found.objects], list(found.left)


def test_kubermatics_quotas_keep_their_limits_and_what_is_not_counted_is_named() -> None:
    objects, left = translated(kkp.translated, KKP)
    subject = {"kind": "project", "name": "tjqjkphnm6"}
    limits = {"cpu": "64", "memory": "256Gi", "storage": "4Ti"}
    assert objects == [
        ("ResourceQuota", "project-tjqjkphnm6", {"subject": subject, "quota": limits}),
        ("QuotaSettings", "default", {"defaults": {"project": {"quota": {"cpu": 8}}}}),
    ]
    assert left == [
        "ResourceQuota project-tjqjkphnm6: spec.quota.accelerators",
        "ResourceQuota default: it follows the default quota, which is in the KubermaticSetting",
        "ResourceQuota cores: only a ResourceQuota and a KubermaticSetting of kubermatic.k8c.io are translated",
    ]


def test_unikorns_quotas_come_with_the_catalogue_and_what_is_allocated() -> None:
    objects, left = translated(unikorn.translated, UNIKORN)
    subject = {"kind": "organization", "name": "9a8c"}
    catalogue = [
        {"name": "clusters", "displayName": "Clusters", "description": "All", "countFrom": "Objects"},
        {"name": "servers", "displayName": "Servers", "description": "Physical servers", "countFrom": "Allocations"},
        {"name": "gpus", "countFrom": "Allocations"},
    ]
    allocated = {
        "organization": "9a8c",
        "project": "77ab",
        "kind": "kubernetescluster",
        "id": "c-1",
        "resources": [{"type": "servers", "committed": 3, "reserved": 2}],
    }
    defaults = {"organization": {"quota": {"clusters": 3, "servers": 10}}}
    assert objects == [
        ("Organization", "9a8c", {"displayName": "acme"}),
        ("Project", "77ab", {"displayName": "web", "organization": "9a8c"}),
        ("QuotaSettings", "default", {"defaults": defaults, "resources": catalogue}),
        ("ResourceQuota", "org-9a8c", {"subject": subject, "quota": {"clusters": 5, "gpus": "40"}}),
        ("Allocation", "a", allocated),
    ]
    assert left == [
        "Quota q of organization 9a8c: clusters is no amount",
        f"Allocation a: floatingips: {unikorn.UNKNOWN}",
        "Allocation of-nothing: it needs the labels unikorn-cloud.org/organization, unikorn-cloud.org/project, "
        "resource.unikorn-cloud.org/kind, resource.unikorn-cloud.org/id",
        "Quota of-nobody: it has no label unikorn-cloud.org/organization, so it is not known whose it is",
    ]


OPENSHIFT = """\
apiVersion: v1
kind: List
items:
- apiVersion: quota.openshift.io/v1
  kind: ClusterResourceQuota
  metadata: {name: for-ann}
  spec:
    selector: {annotations: null, labels: {matchLabels: {owner: ann}}}
    quota:
      hard: {pods: "10", openshift.io/imagestreams: "5", openshift.io/images: "5", widgets: "2", secrets: many}
      scopes: [NotTerminating]
  status: {total: {hard: {pods: "10"}}}
- apiVersion: quota.openshift.io/v1
  kind: ClusterResourceQuota
  metadata: {name: by-requester}
  spec:
    selector: {annotations: {openshift.io/requester: ann}, labels: null}
    quota: {hard: {pods: "10"}}
"""


def of_namespaces(selector: object, quota: object, **more: object) -> dict[str, object]:
    return {"subject": {"kind": "namespaces", "selector": selector}, "quota": quota, **more}


def test_openshifts_quotas_select_the_same_namespaces_and_those_by_annotation_are_left() -> None:
    objects, left = translated(namespaces.openshift, OPENSHIFT)
    limits = {"pods": "10", "count/imagestreams.image.openshift.io": "5"}
    assert objects == [
        (
            "ResourceQuota",
            "for-ann",
            of_namespaces({"matchLabels": {"owner": "ann"}}, limits, scopes=["NotTerminating"]),
        )
    ]
    assert left == [
        "ClusterResourceQuota for-ann: openshift.io/images=5: SeedQuota does not count it",
        "ClusterResourceQuota for-ann: widgets=2: SeedQuota does not count it",
        "ClusterResourceQuota for-ann: secrets=many is no amount",
        "ClusterResourceQuota by-requester: it selects by the annotations openshift.io/requester=ann; label these "
        "namespaces, and select by the label",
    ]


HNC = """\
apiVersion: hnc.x-k8s.io/v1alpha2
kind: HierarchicalResourceQuota
metadata: {name: hrq, namespace: team-a}
spec: {hard: {requests.cpu: "20", pods: "40"}}
"""
CAPSULE = """\
apiVersion: capsule.clastix.io/v1beta2
kind: Tenant
metadata: {name: oil}
spec:
  namespaceOptions: {quota: 3}
  resourceQuotas:
    scope: Tenant
    items:
    - {hard: {limits.cpu: "8"}, scopes: [NotTerminating]}
    - {hard: {pods: "10"}}
  rules:
  - namespaceSelector: {matchExpressions: [{key: env, operator: In, values: [prod]}]}
    quota: [{name: prod, hard: {services: "5"}}]
---
apiVersion: capsule.clastix.io/v1beta2
kind: Tenant
metadata: {name: gas}
spec: {resourceQuotas: {scope: Namespace, items: [{hard: {pods: "10"}}]}}
---
apiVersion: capsule.clastix.io/v1beta2
kind: GlobalResourceQuota
metadata: {name: all-prod}
spec: {namespaceSelectors: [{matchLabels: {env: prod}}], quota: {hard: {pods: "100"}}}
---
apiVersion: capsule.clastix.io/v1beta2
kind: GlobalResourceQuota
metadata: {name: two}
spec: {namespaceSelectors: [{matchLabels: {a: b}}, {matchLabels: {c: d}}], quota: {hard: {pods: "100"}}}
"""
RANCHER = """\
apiVersion: management.cattle.io/v3
kind: Project
metadata: {name: p-abcde, namespace: c-1}
spec:
  displayName: web
  clusterName: c-1
  resourceQuota: {limit: {limitsCpu: 4000m, pods: "50", servicesNodePorts: "2", extended: {nvidia.com/gpu: "2"}}}
---
apiVersion: management.cattle.io/v3
kind: Project
metadata: {name: p-none, namespace: c-1}
spec: {displayName: System, clusterName: c-1}
"""


def test_hncs_quotas_select_the_tree_by_hncs_labels() -> None:
    tree = {"matchExpressions": [{"key": "team-a.tree.hnc.x-k8s.io/depth", "operator": "Exists"}]}
    objects, left = translated(namespaces.hnc, HNC)
    limits = {"requests.cpu": "20", "pods": "40"}
    assert (objects, left) == ([("ResourceQuota", "team-a.hrq", of_namespaces(tree, limits))], [])


def test_capsules_quotas_select_the_tenants_namespaces() -> None:
    objects, left = translated(namespaces.capsule, CAPSULE)
    oil = {"capsule.clastix.io/tenant": "oil"}
    prod = {"matchLabels": oil, "matchExpressions": [{"key": "env", "operator": "In", "values": ["prod"]}]}
    everywhere = {"matchLabels": {"env": "prod"}}
    assert objects == [
        ("ResourceQuota", "oil-0", of_namespaces({"matchLabels": oil}, {"limits.cpu": "8"}, scopes=["NotTerminating"])),
        ("ResourceQuota", "oil-1", of_namespaces({"matchLabels": oil}, {"pods": "10"})),
        ("ResourceQuota", "oil-prod", of_namespaces(prod, {"services": "5"})),
        ("ResourceQuota", "all-prod", of_namespaces(everywhere, {"pods": "100"})),
    ]
    assert left == [
        "Tenant oil: namespaceOptions.quota; SeedQuota does not count namespaces",
        "Tenant gas: resourceQuotas of scope Namespace limit each namespace alone; use core ResourceQuotas",
        "Tenant gas: no quota of it is translated",
        "GlobalResourceQuota two: it has 2 selectors of namespaces; make it select by one, such as a label",
    ]


def test_ranchers_projects_have_the_names_of_core_quotas() -> None:
    objects, left = translated(namespaces.rancher, RANCHER)
    limits = {"limits.cpu": "4000m", "pods": "50", "services.nodeports": "2", "nvidia.com/gpu": "2"}
    selector = {"matchLabels": {"field.cattle.io/projectId": "p-abcde"}}
    assert objects == [("ResourceQuota", "p-abcde", of_namespaces(selector, limits))]
    assert left == ["Project p-none (System, of cluster c-1): it has no quota"]


def test_a_shadow_time_is_one_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for system, text, expected in (("kkp", KKP, 2), ("openshift", OPENSHIFT, 1), ("unikorn", UNIKORN, 2)):
        file = tmp_path / f"{system}.yaml"
        file.write_text(text)
        assert run(["migrate", system, "--enforcement", "warn", str(file)]) == 3
        assert capsys.readouterr().out.count("enforcement: warn") == expected


def test_it_prints_yaml_with_what_is_left_in_comments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kkp.yaml"
    file.write_text(KKP)
    assert run(["migrate", "kkp", str(file)]) == 3
    printed = capsys.readouterr().out
    assert printed.startswith("# not translated: ResourceQuota project-tjqjkphnm6: spec.quota.accelerators\n")
    assert [each["kind"] for each in yaml.safe_load_all(printed)] == ["ResourceQuota", "QuotaSettings"]
    assert run(["migrate", "unikorn", str(file)]) == 1
    assert "there is nothing to translate; ResourceQuota project-tjqjkphnm6" in capsys.readouterr().err
    assert run(["migrate", "kkp", str(tmp_path / "none")]) == 1
    assert "none cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["a: [", "- 1", "spec: {}"])
def test_a_file_of_something_else_is_named(text: str) -> None:
    with pytest.raises(Failed, match=r"^f "):
        list(manifests.documents(text, "f"))
