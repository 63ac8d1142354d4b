"""In which user clusters a refusal names the LocalResourceQuotas."""

from __future__ import annotations

import msgspec
import pytest

from common.api.types import UserCluster
from seed.admission.local_copies import CONDITION, has_copies
from seed.model.cluster_key import HOSTED, KUBERMATIC


@pytest.mark.parametrize(
    ("name", "status", "expected"),
    [
        ("c1", "True", True),
        ("c1", "False", False),
        ("c1", "Unknown", False),
        ("c1", "", False),
        (f"{KUBERMATIC}k1", "", True),
        (f"{HOSTED}h1", "", False),
    ],
)
def test_they_are_where_the_leader_says_so_and_in_clusters_of_kubermatic(
    name: str, status: str, expected: bool
) -> None:
    conditions = [{"type": CONDITION, "status": status}] if status else []
    metadata = {"name": name, "namespace": "alpha"}
    body = {"metadata": metadata, "spec": {"project": "alpha"}, "status": {"conditions": conditions}}
    assert has_copies(msgspec.convert(body, UserCluster)) is expected
