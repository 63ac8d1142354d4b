"""Where a refusal names the LocalResourceQuotas of a user cluster: only where they are. Pure."""

from __future__ import annotations

import msgspec

from common.api.types import UserCluster
from seed.admission import denial
from seed.admission.types import Verdict
from seed.cache.source_keys import is_of_kubermatic

CONDITION = "LocalQuotasWritten"


def has_copies(cluster: UserCluster) -> bool:
    """As the leader says in its status. A Cluster of Kubermatic has none of ours; there the kubeconfig may do all."""
    if is_of_kubermatic(cluster.metadata.key):
        return True
    return any(found.type == CONDITION and found.status == "True" for found in cluster.status.conditions)


def named_in(verdict: Verdict, cluster: UserCluster) -> Verdict:
    """The refusal of a quota names the command that shows the quota in this cluster."""
    refusal = verdict.refusal
    if refusal is None or not has_copies(cluster):
        return verdict
    return msgspec.structs.replace(verdict, refusal=denial.with_copies(refusal, verdict.decision))
