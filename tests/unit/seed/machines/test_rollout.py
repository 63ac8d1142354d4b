"""Which Machines a rollout's new one may replace."""

from __future__ import annotations

import msgspec
import pytest

from common.kube.client.meta import ObjectMeta, OwnerReference
from seed.machines.deployments import Deployment
from seed.machines.rollout import Standing, replaceable

SIZE = {"cpu": 4, "memory": 8}


def owned(uid: str, kind: str, by: str, *, going: bool = False, controller: bool = True) -> ObjectMeta:
    reference = OwnerReference(api_version="cluster.k8s.io/v1alpha1", kind=kind, name=by, uid=by, controller=controller)
    return ObjectMeta(
        name=uid, namespace="k", uid=uid, owner_references=(reference,), deletion_timestamp="now" if going else None
    )


def deployment(spec: str = '{"replicas": 2}', **metadata: str) -> Deployment:
    raw = b'{"metadata": %s, "spec": %s}' % (msgspec.json.encode({"uid": "d", **metadata}), spec.encode())
    return msgspec.json.decode(raw, type=Deployment)


def machine(uid: str, by: str, *, size: dict[str, int] | None = SIZE, going: bool = False) -> Standing:
    return Standing(owned(uid, "MachineSet", by, going=going), size)


SETS = [owned("old", "MachineDeployment", "d"), owned("new", "MachineDeployment", "d")]
TWO = [machine("a", "old"), machine("b", "old")]


def test_the_older_sets_machines_are_replaced_those_that_go_already_first() -> None:
    machines = [machine("a", "old"), machine("b", "old", going=True)]
    assert replaceable(deployment(), SETS, machines, "new", SIZE) == ["b", "a"]


@pytest.mark.parametrize(
    ("spec", "room"),
    [
        ('{"replicas": 2}', True),  # maxSurge is 1 by default
        ('{"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": 0}}}', False),
        ('{"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": "10%"}}}', True),  # rounded up
        ('{"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": "0%"}}}', False),
        ('{"replicas": 2, "rollout": {"strategy": {"rollingUpdate": {"maxSurge": 0}}}}', False),  # v1beta2
        ('{"replicas": 2, "rollout": {"strategy": {"rollingUpdate": {"maxSurge": 2}}}}', True),
        ('{"replicas": 1}', False),
        ('{"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": "many"}}}', False),
    ],
)
def test_a_rollout_has_no_more_machines_at_once_than_max_surge_allows(spec: str, room: bool) -> None:
    assert bool(replaceable(deployment(spec), SETS, TWO, "new", SIZE)) is room


def test_a_smaller_machine_is_no_place_for_a_larger_one() -> None:
    machines = [machine("a", "old", size={"cpu": 4, "memory": 4}), machine("b", "old"), machine("c", "old", size=None)]
    assert replaceable(deployment('{"replicas": 3}'), SETS, machines, "new", SIZE) == ["b"]


def test_scaling_is_no_rollout() -> None:
    assert replaceable(deployment('{"replicas": 9}'), SETS[1:], [machine("a", "new")], "new", SIZE) == []


def test_machines_of_another_deployment_are_not_replaced() -> None:
    sets = [owned("old", "MachineDeployment", "other"), SETS[1]]
    assert replaceable(deployment('{"replicas": 9}'), sets, TWO, "new", SIZE) == []


def test_an_owner_that_is_no_controller_is_none() -> None:
    sets = [SETS[0], owned("new", "MachineDeployment", "d", controller=False)]
    assert replaceable(deployment(), sets, TWO, "new", SIZE) == []


def test_a_deployment_that_is_being_deleted_rolls_nothing_out() -> None:
    assert replaceable(deployment(deletionTimestamp="now"), SETS, TWO, "new", SIZE) == []
