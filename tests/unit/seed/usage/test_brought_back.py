"""What was seen and deleted is gone: its reservations go with the count. What a backup brings back is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from common.api.types import Allocation
from common.kube.client.meta import Object, ObjectMeta
from common.quota.object_names import GroupResource
from seed.kinds.allocations.totals import AllocationTotals
from seed.kinds.namespaces.evaluators.namespaced import Terms
from seed.kinds.namespaces.evaluators.object_count import ObjectCountEvaluator
from seed.kinds.namespaces.totals import ObjectTotals

UID = "uid-1"
COUNTED = ObjectCountEvaluator(GroupResource("configmaps"))


def put_object(totals: ObjectTotals) -> None:
    metadata = ObjectMeta(name="a", namespace="web", uid=UID, resource_version="7")
    totals.put(COUNTED, Object(metadata=metadata), 0.0)


def put_allocation(totals: AllocationTotals) -> None:
    resources = [{"type": "servers", "committed": 2}]
    spec = {"organization": "acme", "project": "alpha", "kind": "server", "id": "1", "resources": resources}
    metadata = {"name": "a", "namespace": "acme", "uid": UID, "generation": 7}
    totals.put(msgspec.convert({"metadata": metadata, "spec": spec}, Allocation))


@pytest.mark.parametrize(
    ("totals", "put"),
    [
        (ObjectTotals(Terms(limited=frozenset({"count/configmaps"}))), put_object),
        (AllocationTotals(), put_allocation),
    ],
)
def test_what_was_deleted_is_gone_until_it_is_there_again(totals: Any, put: Callable[[Any], None]) -> None:
    assert totals.gone([UID]) == set(), "it was never seen"
    put(totals)
    used = dict(totals.used)
    assert used and (totals.seen([UID]), totals.gone([UID])) == ({UID: 7}, set())
    assert totals.remove(UID)
    assert not totals.remove(UID), "it was free already"
    assert (totals.used, totals.seen([UID]), totals.gone([UID, "other"])) == ({}, {}, {UID})
    put(totals)
    assert (totals.used, totals.seen([UID]), totals.gone([UID])) == (used, {UID: 7}, set())
