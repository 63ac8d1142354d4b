"""What objects of one kind use of quotas: the same answer for admission and for counting, so that they cannot disagree.

Admission (seed/admission/objects.py) goes through this, one evaluator for each kind, as Kubernetes' quota plugin does
(k8s.io/apiserver/pkg/quota/v1, Evaluator).
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from common.api.types import UserCluster
from common.kube.client.meta import Object
from common.quota.resources import ResourceList
from seed.providers.size import Footprint

ObjectT_contra = TypeVar("ObjectT_contra", bound=Object, contravariant=True)


class Evaluator(Protocol[ObjectT_contra]):
    """`cluster` is the one that the object is in. Amounts are in nanos.

    NotSized: the object does not tell what it uses, and asking again does not help. ProviderUnavailable: a cloud has
    not told it yet.
    """

    def is_same(self, old: ObjectT_contra, new: ObjectT_contra) -> bool:
        """Whether the update changes nothing that the footprint depends on."""

    async def admitted(self, cluster: UserCluster, subject: ObjectT_contra, deadline: float) -> Footprint:
        """What it will be counted as. `deadline` is on the event loop's clock. Raises NotSized, ProviderUnavailable."""

    def counted(self, cluster: UserCluster, subject: ObjectT_contra) -> Footprint:
        """What it is counted as now; nothing is asked. Raises NotSized, ProviderUnavailable."""

    def least(self, subject: ObjectT_contra) -> ResourceList:
        """What it uses whatever its size is. It is counted as this while its size is not known."""
