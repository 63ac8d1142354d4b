"""The limits of a quota as a seed reads them."""

from __future__ import annotations

import msgspec
import pytest

from common.api.labels import UID_LABEL
from common.api.types import ResourceQuota
from common.quota import resources
from seed.model.quota import parse_quota


@pytest.mark.parametrize(("in_cluster", "cpu"), [(True, "128"), (False, "64")])
def test_in_the_masters_own_cluster_the_grant_says_what_an_override_has_raised(in_cluster: bool, cpu: str) -> None:
    """What quota does not name is unlimited, whatever the grant says. On another seed the copy says it all."""
    body = {
        "metadata": {"name": "alpha", "uid": "u", "labels": {UID_LABEL: "u"}},
        "spec": {
            "subject": {"kind": "project", "name": "alpha"},
            "quota": {"cpu": "64", "memory": "1Gi"},
            "overrides": [{"until": "2020-01-01T00:00:00Z", "quota": {"cpu": "128"}}],
        },
        "status": {"grant": {"raised": {"cpu": "128", "storage": "1Ti"}}},
    }
    found = parse_quota(msgspec.convert(body, ResourceQuota), in_cluster=in_cluster)
    assert found is not None
    assert found.limits == found.ceilings == resources.parse({"cpu": cpu, "memory": "1Gi"})
