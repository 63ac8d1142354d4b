"""The webhook for Cluster API's Machines and MachinePools on the seed itself, and the configuration that calls it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from common.api.types import UserCluster
from common.kube.client.errors import ApiError, NotFound
from common.server.http_parser import Request, Response
from seed.admission import denial
from seed.admission.decision_log import Decisions
from seed.admission.machines import MachineAdmission, undecided
from seed.admission.types import Verdict
from seed.cache.cluster_api import Subject, View
from seed.machines.cluster_api import ClusterMachine, MachinePool, PoolSpec
from seed.registration.cluster_api import CALLER, PATH
from seed.registration.probe import is_canary
from seed.webhooks.respond import OnDecision, conclude
from seed.webhooks.review import RawRequest, RawReview, Scale, decided, is_named, patience

_review = msgspec.json.Decoder(RawReview).decode
_machine = msgspec.json.Decoder(ClusterMachine | None).decode
_pool = msgspec.json.Decoder(MachinePool | None).decode
_scale = msgspec.json.Decoder(Scale | None).decode


class ClusterApiWebhook:
    """Handles `POST /cluster-api/<token>`."""

    def __init__(
        self,
        view: View,
        admission: MachineAdmission,
        verify: Callable[[str, str], bool],
        on_decision: OnDecision = lambda _decision, _reason, _path, _seconds: None,
        decisions: Decisions | None = None,
    ) -> None:
        self._decisions = decisions if decisions is not None else Decisions()
        self._view = view
        self._admission = admission
        self._verify = verify
        self._on_decision = on_decision

    async def handle(self, request: Request) -> Response:
        started = time.monotonic()
        if request.method != "POST" or not self._verify(CALLER, request.path.removeprefix(PATH)):
            return Response(404, b"not found\n")
        try:
            review = _review(request.body).request
            new, old = _subjects(review)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Response(400, f"not an AdmissionReview of a Machine: {error}\n".encode(errors="replace"))
        if isinstance(new, ClusterMachine) and is_canary(new.metadata, dry_run=review.dry_run):
            return decided(review.uid, Verdict(decision="", refusal=denial.canary()))
        if new is not None and not is_named(new):
            return Response(400, b"the Machine has no proper name, namespace and uid\n")
        deadline = asyncio.get_running_loop().time() + patience(request.query)
        cluster, found = await self._decide(review, new, old, deadline)
        metadata, seconds = new.metadata if new is not None else None, time.monotonic() - started
        return conclude(review, metadata, cluster, found, seconds, self._on_decision, self._decisions)

    async def _decide(
        self, review: RawRequest, new: Subject | Scale | None, old: Subject | Scale | None, deadline: float
    ) -> tuple[UserCluster | None, Verdict]:
        """And whose it is, as far as that was found."""
        cluster: UserCluster | None = None
        if new is None or review.operation not in {"CREATE", "UPDATE"} or (old is not None and new.spec == old.spec):
            return None, Verdict(decision="")  # a Machine that cannot be sized must still lose its finalizer
        try:
            async with asyncio.timeout_at(deadline):
                if isinstance(new, Scale):
                    new, old = await self._scaled(new)
                assert not isinstance(old, Scale), "only a Scale changes a Scale"
                cluster = await self._view.cluster_of(new.metadata.namespace, new.spec.cluster_name)
                if cluster is None:
                    return None, Verdict(decision="")  # of no project
                machine = await self._view.find_machine(new)
                before = await self._view.find_machine(old) if old is not None else None
        except NotFound as error:
            return cluster, undecided(f"the Cluster or MachinePool that it is of is not there: {error.message}")
        except (ApiError, TimeoutError) as error:
            return cluster, undecided(f"what the Machine is made of cannot be read now: {error or 'no answer in time'}")
        found = await self._admission.decide(cluster, machine, before, dry_run=review.dry_run, deadline=deadline)
        return cluster, found

    async def _scaled(self, scale: Scale) -> tuple[MachinePool, MachinePool]:
        """The MachinePool as it will be, and as it is. Raises ApiError."""
        old = await self._view.find_pool(scale.metadata.namespace, scale.metadata.name)
        spec: PoolSpec = msgspec.structs.replace(old.spec, replicas=scale.spec.replicas)
        metadata = msgspec.structs.replace(old.metadata, generation=old.metadata.generation + 1)
        return msgspec.structs.replace(old, metadata=metadata, spec=spec), old


def _subjects(review: RawRequest) -> tuple[Subject | Scale | None, Subject | Scale | None]:
    """Raises msgspec.MsgspecError."""
    old = review.old_object if review.operation == "UPDATE" else b"null"
    match review.resource.resource, review.sub_resource:
        case "machines", "":
            return _machine(review.object), _machine(old)
        case "machinepools", "":
            return _pool(review.object), _pool(old)
        case "machinepools", "scale":
            return _scale(review.object), _scale(old)
    return None, None  # a status, say: costs nothing
