"""What the links of one master share."""

from __future__ import annotations

from dataclasses import dataclass

from common.kube.client.api_client import RequestHook
from common.kube.controller.controller import ReconcileHook
from common.runtime.burst import BurstDetector
from master.cache.informers import Caches


@dataclass(frozen=True, slots=True)
class MasterSide:
    """`master`: the uid of its Lease. `rush`: many quotas are on their way to seeds."""

    caches: Caches
    namespace: str
    master: str
    rush: BurstDetector
    on_request: RequestHook | None
    on_reconcile: ReconcileHook | None
