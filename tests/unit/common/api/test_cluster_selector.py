from __future__ import annotations

import msgspec
import pytest

from common.api import seed_selector
from common.api.cluster_selector import ClusterSelector, picks, text
from common.api.seed_selector import SeedSelector
from common.api.subject_text import subject_text
from common.api.types import Subject

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


@pytest.mark.parametrize(
    ("body", "picked", "shown"),
    [
        ({"names": ["eu-1", "us-1"]}, {"eu-1", "us-1"}, "eu-1,us-1"),
        ({"matchLabels": {"region": "eu"}}, {"eu-1", "eu-2"}, "region=eu"),
        ({"names": ["eu-1", "us-1"], "matchLabels": {"region": "eu"}}, {"eu-1"}, "eu-1,us-1 region=eu"),
        (
            {"matchExpressions": [{"key": "region", "operator": "NotIn", "values": ["eu"]}]},
            {"us-1"},
            "region notin (eu)",
        ),
    ],
)
def test_a_seed_is_picked_by_its_name_and_its_labels(body: dict[str, object], picked: set[str], shown: str) -> None:
    labels = {"eu-1": {"region": "eu"}, "eu-2": {"region": "eu"}, "us-1": {}}
    found = msgspec.convert(body, SeedSelector)
    assert {name for name, has in labels.items() if seed_selector.picks(found, name, has)} == picked
    subject = Subject(kind="project", name="alpha", clusters=selector(names=["c1"]), seeds=found)
    assert subject_text(subject) == f"project/alpha in clusters c1 on seeds {shown}"
