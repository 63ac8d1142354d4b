"""Rolling updates of MachineDeployments: which older Machines a new one may replace. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.kube.client.meta import ObjectMeta
from common.quota.resources import ResourceList
from seed.machines.deployments import Deployment


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
    most = deployment.wanted + deployment.max_surge
    if newer not in family or deployment.metadata.deletion_timestamp or len(members) >= most:
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
