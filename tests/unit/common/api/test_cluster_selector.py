from __future__ import annotations

import msgspec
import pytest

from common.api.cluster_selector import ClusterSelector, picks, text

GPU = {"matchLabels": {"pool": "gpu"}}


def selector(**body: object) -> ClusterSelector:
    return msgspec.convert(body, ClusterSelector)


@pytest.mark.parametrize(
    ("body", "picked", "shown"),
    [
        ({}, {"a/c1", "b/c1", "a/c2"}, ""),
        ({"names": ["c1"]}, {"a/c1", "b/c1"}, "c1"),
        ({"names": ["a/c1", "c2"]}, {"a/c1", "a/c2"}, "a/c1,c2"),
        (GPU, {"a/c1", "a/c2"}, "pool=gpu"),
        ({"names": ["c1"], **GPU}, {"a/c1"}, "c1 pool=gpu"),
        ({"matchExpressions": [{"key": "pool", "operator": "DoesNotExist"}]}, {"b/c1"}, "!pool"),
    ],
)
def test_a_cluster_is_picked_by_its_name_and_its_labels(body: dict[str, object], picked: set[str], shown: str) -> None:
    labels = {("a", "c1"): {"pool": "gpu"}, ("b", "c1"): {}, ("a", "c2"): {"pool": "gpu"}}
    found = selector(**body)
    assert {"/".join(key) for key, has in labels.items() if picks(found, *key, has)} == picked
    assert text(found) == shown
