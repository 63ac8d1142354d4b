"""MachineDeployments and MachineSets: how many Machines they are to have, of what, and how these are replaced. Pure.

Of machine-controller's API and of Cluster API's, v1beta1 and v1beta2: they share these fields.
"""

from __future__ import annotations

import msgspec

from common.kube.client.meta import Int64, Object, ObjectMeta
from seed.machines import cluster_api, machine_controller

DEPLOYMENTS = {"machinedeployments": "MachineDeployment", "machinesets": "MachineSet"}
"""Their kinds, by resource."""

_ROLLED = ("bootstrap", "infrastructureRef", "version", "failureDomain")
"""What Cluster API replaces Machines for; it changes all else in place (mdutil, MachineTemplateUpToDate)."""

_LONGEST_TEMPLATE = 2 * machine_controller.LONGEST_SPEC


class RollingUpdate(msgspec.Struct, frozen=True, rename="camel"):
    max_surge: Int64 | str | None = None
    max_unavailable: Int64 | str | None = None


class Strategy(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    rolling_update: RollingUpdate | None = None


class Rollout(msgspec.Struct, frozen=True):
    """Where v1beta2 has the strategy."""

    strategy: Strategy | None = None


class Selector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str] | None = None


class DeploymentSpec(msgspec.Struct, frozen=True, rename="camel"):
    cluster_name: str = ""
    replicas: Int64 | None = None
    selector: Selector | None = None
    template: msgspec.Raw = msgspec.Raw(b"{}")
    strategy: Strategy | None = None
    rollout: Rollout | None = None


class DeploymentStatus(msgspec.Struct, frozen=True):
    replicas: Int64 | None = None


class Deployment(Object, frozen=True, kw_only=True):
    """A MachineDeployment or a MachineSet."""

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def wanted(self) -> int:
        """Not set is one."""
        return 1 if self.spec.replicas is None else max(self.spec.replicas, 0)

    @property
    def existing(self) -> int:
        return max(self.status.replicas or 0, 0)

    @property
    def labels(self) -> dict[str, str]:
        """That its Machines have; they may have to meet other expressions, too."""
        selector = self.spec.selector
        return (selector.match_labels if selector is not None else None) or {}

    @property
    def strategy(self) -> Strategy:
        spec = self.spec
        return (spec.rollout.strategy if spec.rollout is not None else spec.strategy) or Strategy()

    @property
    def max_surge(self) -> int:
        """Machines that a rollout may have beyond those that are wanted; not set is one."""
        bounds = self.strategy.rolling_update
        if bounds is None or bounds.max_surge is None:
            return 1
        return _share(bounds.max_surge, self.wanted, up=True)

    @property
    def controlled(self) -> bool:
        """It is made and scaled by another object."""
        return any(owner.controller for owner in self.metadata.owner_references)


class _MachineControllerTemplate(msgspec.Struct, frozen=True):
    spec: machine_controller.MachineSpec = machine_controller.MachineSpec()


def machine_of(deployment: Deployment) -> machine_controller.Machine:
    """One that machine-controller would make of it. Raises msgspec.MsgspecError."""
    template = msgspec.json.decode(deployment.spec.template, type=_MachineControllerTemplate)
    return machine_controller.Machine(metadata=_metadata(deployment), spec=template.spec)


def cluster_machine_of(deployment: Deployment) -> cluster_api.ClusterMachine:
    """One that Cluster API would make of it, except that it refers to a template. Raises msgspec.MsgspecError."""
    template = msgspec.json.decode(deployment.spec.template, type=cluster_api.MachineTemplate)
    return cluster_api.ClusterMachine(metadata=_metadata(deployment), spec=template.spec)


def _metadata(deployment: Deployment) -> ObjectMeta:
    return ObjectMeta(name=deployment.metadata.name, namespace=deployment.metadata.namespace)


def replaces(new: Deployment, old: Deployment) -> bool:
    """Whether the Machines of `old` are not what `new` wants. Raises msgspec.MsgspecError."""
    templates = [bytes(deployment.spec.template) for deployment in (new, old)]
    if templates[0] == templates[1]:
        return False
    if max(map(len, templates)) > _LONGEST_TEMPLATE:
        return True
    return _rolled(new) != _rolled(old)


def _rolled(deployment: Deployment) -> object:
    template = msgspec.json.decode(deployment.spec.template, type=dict[str, object])
    if not deployment.spec.cluster_name:
        return template  # machine-controller replaces them for a label, too
    spec = template.get("spec")
    return [spec.get(name) for name in _ROLLED] if isinstance(spec, dict) else spec


def surge(deployment: Deployment) -> int:
    """How many Machines a rollout must start before it may stop one; 0 if it need not start any first.

    As both controllers compute it (ResolveFenceposts): where some may be unavailable, old ones go even though the new
    ones do not come.
    """
    strategy = deployment.strategy
    if strategy.type not in ("", "RollingUpdate"):
        return 0
    bounds = strategy.rolling_update or RollingUpdate()
    unavailable = 0 if bounds.max_unavailable is None else _share(bounds.max_unavailable, deployment.wanted, up=False)
    return 0 if unavailable else deployment.max_surge


def _share(bound: int | str, replicas: int, *, up: bool) -> int:
    """A number or a percentage; 0 for what is neither, which the controllers refuse."""
    if isinstance(bound, int):
        return max(bound, 0)
    percent = bound.removesuffix("%")
    if percent == bound or not (percent.isascii() and percent.isdecimal() and len(percent) < 6):
        return 0
    return -(-replicas * int(percent) // 100) if up else replicas * int(percent) // 100
