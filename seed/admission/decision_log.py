"""The last decisions of this replica, with what they were made from: `GET /decisions/ID` on the port of its metrics."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from common.api import refusal_counts
from common.api.types import UserCluster
from common.kube.client.meta import ObjectMeta
from common.quota import resources
from seed.admission.record import Record, quota_records
from seed.admission.refusal import Refusal
from seed.admission.refusal_counter import RefusalCounter
from seed.admission.types import Verdict

MAX_KEPT = 8192
MAX_DRY_RUNS = 512  # of them: they cost nobody anything, so there can be many
MAX_FOUND = 100  # of one Machine
MAX_REFUSED = 50  # in one answer about a quota or a project ...
MAX_REFUSED_BYTES = 128 * 1024  # ... and what they may take; one decision may have many quotas
LATELY = 3600.0  # seconds in which a refusal is one of these

PATH = "decisions"
REFUSED = "refused"  # below it; no decision has an id of seven letters
MACHINE = "machine"
POD = "pod"

_encode = msgspec.json.Encoder().encode


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """Who asked about what kind of object, and how long the answer took."""

    operation: str
    user: str
    dry_run: bool
    seconds: float
    consumer: str = MACHINE


class Decided(msgspec.Struct, frozen=True):
    """A decision about one object. It refers to little, since thousands are kept."""

    verdict: Verdict
    call: Call
    at: float  # seconds since 1970, for people
    cluster: str  # key of the UserCluster
    object: str  # key
    uid: str


OnDecision = Callable[[UserCluster, ObjectMeta, Verdict], None]
OnPod = Callable[[UserCluster | None, ObjectMeta, Verdict], None]
OnRefusal = Callable[[Refusal], None]


class Decisions:
    """Older ones go when there are more than `most`: of the cluster that has most of them.

    `on_decision` is called for Machines, and not for dry runs; `on_pod` for pods that are to be created, likewise;
    `on_refusal` for each refusal.
    """

    def __init__(
        self,
        *,
        most: int = MAX_KEPT,
        on_decision: OnDecision = lambda _cluster, _object, _found: None,
        on_pod: OnPod = lambda _cluster, _object, _found: None,
        on_refusal: OnRefusal = lambda _refusal: None,
    ) -> None:
        self._most = most
        self._kept: dict[str, deque[Decided]] = {}  # by cluster
        self._number = 0
        self._dry_runs: deque[Decided] = deque(maxlen=min(MAX_DRY_RUNS, most))
        self._on_decision = on_decision
        self._on_pod = on_pod
        self._on_refusal = on_refusal
        self._refusals = RefusalCounter()

    def made(self, verdict: Verdict, cluster: UserCluster | None, subject: ObjectMeta | None, call: Call) -> None:
        if verdict.refusal is not None:
            self._on_refusal(verdict.refusal)
        if not verdict.decision or subject is None:
            return  # it costs nothing: there was nothing to decide
        of = cluster.metadata.key if cluster is not None else ""
        self._keep(Decided(verdict, call, time.time(), of, subject.key, subject.uid))
        if call.dry_run:
            return
        self._refusals.count(verdict)
        if cluster is not None and call.consumer == MACHINE:
            self._on_decision(cluster, subject, verdict)
        elif call.consumer == POD and call.operation == "CREATE":
            self._on_pod(cluster, subject, verdict)

    def _keep(self, made: Decided) -> None:
        if made.call.dry_run:
            self._dry_runs.append(made)
            return
        self._kept.setdefault(made.cluster, deque()).append(made)
        self._number += 1
        if self._number > self._most:
            self._drop_some()

    def _drop_some(self) -> None:
        """Several at once, since it takes a look at all clusters to find the one with most."""
        largest = max(self._kept, key=lambda cluster: len(self._kept[cluster]))
        decisions = self._kept[largest]
        for _ in range(len(decisions) // 64 + 1):
            decisions.popleft()
            self._number -= 1
        if not decisions:
            del self._kept[largest]

    def page(self, rest: str, query: Mapping[str, str]) -> bytes | None:
        """What is asked for as JSON: one decision, or a list: those about a Machine, or what a quota refused lately, or
        what was refused in a project. The last is first. And how often each quota refused, for whoever keeps that."""
        if rest == refusal_counts.PATH:
            return self._refusals.page()
        if rest == REFUSED:
            return self._refused(query.get("quota", ""), query.get("project", ""))
        if rest:
            wanted = rest.upper()
            one = next((kept for kept in self._latest() if kept.verdict.decision == wanted), None)
            return _encode(record(one)) if one is not None else None
        machine = query.get("machine", "")
        found: list[Record] = []
        for kept in self._latest():
            known = kept.object if "/" in machine else kept.object.rpartition("/")[2]
            if known == machine and kept.call.consumer == MACHINE:
                found.append(record(kept))
                if len(found) == MAX_FOUND:
                    break
        return _encode({"items": found})

    def _refused(self, quota: str, project: str) -> bytes:
        """`more`: not all of the last hour, or of the time of which decisions are kept, are in the answer."""
        since, size = time.time() - LATELY, 0
        found: list[msgspec.Raw] = []
        for kept in self._latest():
            if kept.at < since:
                break
            if not kept.call.dry_run and refused_by(kept.verdict, quota, project):
                item = _encode(record(kept))
                size += len(item)
                if len(found) == MAX_REFUSED or size > MAX_REFUSED_BYTES:
                    return _encode({"items": found, "more": True})
                found.append(msgspec.Raw(item))
        return _encode({"items": found, "more": False})

    def _latest(self) -> Iterator[Decided]:
        found = [made for kept in (*self._kept.values(), self._dry_runs) for made in kept]
        return iter(sorted(found, key=lambda made: made.at, reverse=True))


def refused_by(found: Verdict, quota: str, project: str) -> bool:
    """By the quota, or of the project."""
    if found.refusal is None:
        return False
    if quota and any(each.refusal is not None and each.snapshot.quota.name == quota for each in found.attempts):
        return True
    return bool(project) and found.request is not None and found.request.consumer.project == project


def record(decided: Decided) -> Record:
    found, call = decided.verdict, decided.call
    refusal, request = found.refusal, found.request
    return Record(
        decision=found.decision,
        time=datetime.fromtimestamp(decided.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        result="admitted" if refusal is None else "refused",
        duration_ms=round(call.seconds * 1000, 2),
        operation=call.operation,
        user=call.user,
        dry_run=call.dry_run,
        cluster=decided.cluster,
        consumer=call.consumer,
        object=decided.object,
        uid=decided.uid,
        project=request.consumer.project if request is not None else "",
        need=resources.render(request.need) if request is not None else {},
        code=refusal.code if refusal is not None else 0,
        reason=refusal.cause if refusal is not None else "",
        message=found.message,
        warnings=list(found.warnings),
        quotas=quota_records(found),
    )
