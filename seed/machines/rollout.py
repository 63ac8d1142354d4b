"""Rolling updates of MachineDeployments: which older Machines a new one may replace. Pure.

The same for machine-controller's API and Cluster API, whose MachineDeployments differ only in where maxSurge stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from common.kube.meta import Object, ObjectMeta
from common.resources import ResourceList

Share = int | str
"""So many, or of all replicas so many percent: `25%`."""


class _Rolling(msgspec.Struct, frozen=True, rename="camel"):
    max_surge: Share | None = None


class _Strategy(msgspec.Struct, frozen=True, rename="camel"):
    rolling_update: _Rolling | None = None


class _Rollout(msgspec.Struct, frozen=True):
    strategy: _Strategy | None = None


class _Selector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str] = {}


class DeploymentSpec(msgspec.Struct, frozen=True, rename="camel"):
    """`rollout` has the strategy since Cluster API's v1beta2."""

    replicas: int | None = None
    selector: _Selector = _Selector()
    strategy: _Strategy | None = None
    rollout: _Rollout | None = None


class Deployment(Object, frozen=True, kw_only=True):
    """A MachineDeployment."""

    spec: DeploymentSpec = DeploymentSpec()

    @property
    def most(self) -> int:
        """Machines that a rollout of it may have at once."""
        replicas = 1 if self.spec.replicas is None else self.spec.replicas
        rollout = self.spec.rollout
        strategy = self.spec.strategy or (rollout.strategy if rollout is not None else None)
        rolling = strategy.rolling_update if strategy is not None else None
        surge = rolling.max_surge if rolling is not None else None
        return replicas + _of(1 if surge is None else surge, replicas)


class Standing(msgspec.Struct, frozen=True):
    """A Machine that is there, and what it takes; None where that is not known now."""

    metadata: ObjectMeta
    size: ResourceList | None


def owner(metadata: ObjectMeta, kind: str) -> str:
    """The uid of the controller of this kind, empty without one."""
    return next((ref.uid for ref in metadata.owner_references if ref.controller and ref.kind == kind), "")


def replaceable(
    deployment: Deployment, sets: Sequence[ObjectMeta], machines: Sequence[Standing], newer: str, need: ResourceList
) -> list[str]:
    """The uids of the Machines that one which needs `need` may replace, those that go already first.

    `sets` are MachineSets, `newer` is the uid of the one that makes the new Machine. Machines of other sets of the
    deployment are replaced; each must take at least what the new one needs, of everything, so that its place is enough.
    """
    family = {known.uid for known in sets if owner(known, "MachineDeployment") == deployment.metadata.uid}
    members = [standing for standing in machines if owner(standing.metadata, "MachineSet") in family]
    if newer not in family or deployment.metadata.deletion_timestamp or len(members) >= deployment.most:
        return []
    older = [
        standing.metadata
        for standing in members
        if owner(standing.metadata, "MachineSet") != newer
        and standing.size is not None
        and _covers(standing.size, need)
    ]
    return [known.uid for known in sorted(older, key=lambda known: (known.deletion_timestamp is None, known.uid))]


def _covers(size: ResourceList, need: ResourceList) -> bool:
    return all(size.get(name, 0) >= amount for name, amount in need.items())


def _of(share: Share, replicas: int) -> int:
    """Rounded up, as both APIs do for maxSurge."""
    if isinstance(share, int):
        return max(share, 0)
    digits = share.removesuffix("%")
    return math.ceil(int(digits) * replicas / 100) if digits.isascii() and digits.isdigit() and digits != share else 0
