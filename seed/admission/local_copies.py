"""Where a refusal names LocalResourceQuotas: only where they are. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.api.types import Condition, UserCluster
from seed.admission import denial
from seed.admission.types import Verdict
from seed.model.cluster_key import is_of_kubermatic

CONDITION = "LocalQuotasWritten"


def has_copies(cluster: UserCluster) -> bool:
    """As the leader says in its status. A Cluster of Kubermatic has none of ours; there the kubeconfig may do all."""
    if is_of_kubermatic(cluster.metadata.key):
        return True
    return are_written(cluster.status.conditions)


def are_written(conditions: Sequence[Condition]) -> bool:
    """By the status of a UserCluster, or by what the leader says of its seed."""
    return any(found.type == CONDITION and found.status == "True" for found in conditions)


def named_in(verdict: Verdict, cluster: UserCluster) -> Verdict:
    """The refusal of a quota names the command that shows the quota in this cluster."""
    refusal = verdict.refusal
    if refusal is None or not has_copies(cluster):
        return verdict
    return msgspec.structs.replace(verdict, refusal=denial.with_copies(refusal))


def named_in_namespace(verdict: Verdict, namespace: str, conditions: Sequence[Condition]) -> Verdict:
    """The same of the quota's copy in this namespace. `conditions`: of the cluster."""
    refusal = verdict.refusal
    if refusal is None or not are_written(conditions):
        return verdict
    return msgspec.structs.replace(verdict, refusal=denial.with_copies(refusal, namespace))
