"""Which of the master's objects an object on a seed stands for.

On a seed it is a copy, and a label names the uid of its original. On a seed that is the master's own API server
(`Seed.spec.inCluster`) there are no copies: each object stands for itself.
"""

from __future__ import annotations

from common.api.labels import UID_LABEL
from common.kube.client.meta import Object


def original_uid(found: Object, *, in_cluster: bool) -> str:
    """Empty for an object that the master did not send."""
    return found.metadata.uid if in_cluster else found.metadata.labels.get(UID_LABEL, "")
