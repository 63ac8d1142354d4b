"""Quotas of other systems as ours, and what is said of those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.__main__ import run
from cli.migration import kkp, manifests, unikorn
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
kind: Allocation
metadata: {name: a}
---
apiVersion: identity.unikorn-cloud.org/v1alpha1
kind: Quota
metadata: {name: of-nobody}
spec: {quotas: [{kind: clusters, quantity: 5}]}
"""


def translated(system: Any, text: str) -> tuple[list[Any], list[str]]:
    found = system.translated(manifests.documents(text, "f"))
    return [(each["kind"], each["metadata"]["name"], each.get("spec")) for each in found.objects], list(found.left)


def test_kubermatics_quotas_keep_their_limits_and_what_is_not_counted_is_named() -> None:
    objects, left = translated(kkp, KKP)
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


def test_unikorns_organizations_and_projects_come_before_their_quotas() -> None:
    objects, left = translated(unikorn, UNIKORN)
    subject = {"kind": "organization", "name": "9a8c"}
    assert objects == [
        ("Organization", "9a8c", {"displayName": "acme"}),
        ("Project", "77ab", {"displayName": "web", "organization": "9a8c"}),
        ("ResourceQuota", "org-9a8c", {"subject": subject, "quota": {"clusters": 5}}),
        ("QuotaSettings", "default", {"defaults": {"organization": {"quota": {"clusters": 3}}}}),
    ]
    assert left == [
        "Quota q of organization 9a8c: gpus=40: SeedQuota counts no gpus by itself; add it to "
        "QuotaSettings.spec.resources, then set this limit",
        "Quota q of organization 9a8c: clusters is no amount",
        "Allocation a: what is allocated is counted from the objects themselves",
        "Quota of-nobody: it has no label unikorn-cloud.org/organization, so it is not known whose it is",
    ]


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
