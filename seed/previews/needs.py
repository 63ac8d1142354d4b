"""What the objects of a manifest would use of quotas, by the evaluators that admission asks: `POST /needs` on the port
of the metrics of every replica. Nothing is reserved, stored or asked of anybody.

An API server fills in defaults before it asks a webhook; here nobody has. Of them, the one that changes what pods use
is known: a limit without a request is the request, too. A LimitRange is not known, nor are the plurals of kinds: the
usual one is taken, as kubectl does (k8s.io/apimachinery/pkg/api/meta, UnsafeGuessKindToResource).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from common.api import labels
from common.api.preview_pages import (
    MAX_LINES,
    MAX_REPLICAS,
    NeedsPage,
    NeedsQuestion,
    ObjectNeeds,
    shortened,
)
from common.api.types import Allocation
from common.quota import resources
from common.quota.object_names import GroupResource
from common.quota.resources import ResourceList
from common.runtime.pieces import in_pieces
from seed.cache import kubermatic_objects
from seed.cache.quotas import QuotaCache
from seed.kinds.allocations import evaluator as allocations
from seed.kinds.clusters import evaluator as clusters
from seed.kinds.namespaces.admission import need_of
from seed.kinds.namespaces.evaluators import namespaced
from seed.kinds.namespaces.evaluators.namespaced import AsSent, Refused, Write
from seed.kinds.namespaces.evaluators.registry import evaluator_of
from seed.machines import cluster_api, machine_controller
from seed.machines.machine_controller import Machine
from seed.model.quota import NAMESPACES, Quota
from seed.previews import objects
from seed.previews.machine_types import KnownTypes
from seed.previews.objects import InvalidManifest, Manifest
from seed.providers.size import Footprint, NotSized, ProviderUnavailable

_CLUSTERS = {
    (labels.GROUP, "UserCluster"),
    (cluster_api.GROUP, "Cluster"),
    (kubermatic_objects.GROUP, "Cluster"),
}
_MAKERS = {"MachineDeployment", "MachineSet"}
_BY_INFRASTRUCTURE = "it uses what its infrastructure object says: ask for it with `kubectl seedquota fits -f FILE`"

_encode = msgspec.json.Encoder().encode
_question = msgspec.json.Decoder(NeedsQuestion).decode


class _Piece(msgspec.Struct, frozen=True):
    """`count` of an object. `makes_others`: what it makes comes after it."""

    what: str
    manifest: Manifest
    count: int
    makes_others: bool = False


class NeedsPages:
    def __init__(self, quota_cache: QuotaCache, types: KnownTypes) -> None:
        self._quota_cache = quota_cache
        self._types = types
        self._one = asyncio.Lock()

    async def answer(self, content: bytes) -> bytes | None:
        """As JSON. None: the question cannot be read."""
        try:
            asked = _question(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        async with self._one:  # others than it come between its pieces
            return _encode(await self._page(asked))

    async def _page(self, asked: NeedsQuestion) -> NeedsPage:
        page = NeedsPage()
        quotas = [quota for name in asked.quotas if (quota := self._quota_cache.quota(name)) is not None]
        if len(quotas) < len(asked.quotas):
            page.problem = "this seed does not have all of the quotas yet"
            return page
        projects = [asked.project] if asked.project else sorted(self._projects_of(quotas))
        try:
            async for piece in in_pieces(_pieces(asked)):
                if len(page.items) == MAX_LINES:
                    page.problem = f"the objects are more than {MAX_LINES} together with what they make"
                    break
                found = self._needs(piece, quotas, projects)
                if found.needs or found.problem or not piece.makes_others:
                    page.items.append(found)
        except InvalidManifest as error:
            page.problem = shortened(str(error))
        return page

    def _projects_of(self, quotas: Sequence[Quota]) -> set[str]:
        return {project for quota in quotas for project in self._quota_cache.payers_of(quota)}

    def _needs(self, piece: _Piece, quotas: Sequence[Quota], projects: Sequence[str]) -> ObjectNeeds:
        manifest, found = piece.manifest, ObjectNeeds(object=shortened(piece.what), count=piece.count)
        try:
            own = self._own(manifest, projects)
            if own is not None:
                found.unknown = {each: shortened(why) for each, why in own.unknown.items()}
                own.require(name for quota in quotas if quota.enforced for name in quota.limits)
            for quota in quotas:
                need = _of_namespaces(manifest, quota)
                if own is not None and quota.kind != NAMESPACES:
                    need = resources.add(need, resources.only(self._counted(manifest, own), quota.limits))
                if need := {name: amount for name, amount in need.items() if amount > 0}:
                    found.needs[quota.name] = resources.render(need)
        except (NotSized, ProviderUnavailable, Refused, InvalidManifest) as error:
            found.needs, found.problem = {}, shortened(str(error))
        return found

    def _own(self, manifest: Manifest, projects: Sequence[str]) -> Footprint | None:
        """What it costs wherever it is; None where that is nothing. Raises NotSized, ProviderUnavailable,
        InvalidManifest."""
        kind = (manifest.group, manifest.kind)
        if kind == (machine_controller.GROUP, machine_controller.KIND):
            return self._types.size(_decoded(manifest, Machine), projects)
        if kind in _CLUSTERS:
            return Footprint("", clusters.ONE)
        if kind == (labels.GROUP, "Allocation"):
            return Footprint("", allocations.used(_decoded(manifest, Allocation)))
        if manifest.group == cluster_api.GROUP and manifest.kind in {"Machine", "MachinePool", *_MAKERS}:
            raise InvalidManifest(_BY_INFRASTRUCTURE)
        return None

    def _counted(self, manifest: Manifest, size: Footprint) -> ResourceList:
        catalogue = self._quota_cache.catalogue
        if (manifest.group, manifest.kind) == (labels.GROUP, "Allocation"):
            return catalogue.from_allocations(size.resources)
        return catalogue.from_objects(size.resources)


def _pieces(asked: NeedsQuestion) -> Iterator[_Piece]:
    """Each object, and what it makes. Raises InvalidManifest."""
    replicas = asked.replicas or None
    for manifest in objects.of_documents(asked.documents):
        wanted = objects.with_replicas(manifest, replicas)
        pool = wanted.is_scaled and wanted.group == machine_controller.GROUP
        copies = objects.copies(wanted, replicas)
        yield _Piece(wanted.shown, _defaulted(wanted), copies, makes_others=pool or wanted.is_workload)
        if wanted.is_workload:
            for made in objects.made_by(wanted, wanted.body, None):
                yield _Piece(made.what, _defaulted(made.manifest), _bounded(made.count))
        elif pool:
            number = wanted.body.get("spec", {}).get("replicas", 1)
            if not isinstance(number, int) or isinstance(number, bool):
                raise InvalidManifest(f"{wanted.shown}: spec.replicas is no whole number")
            yield _Piece(f"machines of {wanted.shown}", _machine(wanted), _bounded(number))


def _bounded(count: int) -> int:
    """Raises InvalidManifest."""
    if count > MAX_REPLICAS:
        raise InvalidManifest(f"{count} pieces are too many: ask for {MAX_REPLICAS} at most")
    return max(count, 0)


def _machine(maker: Manifest) -> Manifest:
    """One of those that a MachineDeployment makes. Raises InvalidManifest."""
    template = maker.body.get("spec", {}).get("template")
    if not isinstance(template, dict):
        raise InvalidManifest(f"{maker.shown} has no spec.template")
    body = {"metadata": {"generateName": f"{maker.name}-"}, "spec": template.get("spec") or {}}
    return Manifest(maker.api_version, machine_controller.KIND, body)


def _defaulted(pod: Manifest) -> Manifest:
    """As an API server would store it (pkg/apis/core/v1/defaults.go, SetDefaults_Pod). Of claims nothing changes."""
    spec = pod.body.get("spec")
    if (pod.group, pod.kind) != ("", "Pod") or not isinstance(spec, dict):
        return pod
    containers: dict[str, Any] = {}
    for field in ("containers", "initContainers"):
        if isinstance(listed := spec.get(field), list):
            containers[field] = [_with_requests(each) for each in listed]
    return Manifest(pod.api_version, pod.kind, {**pod.body, "spec": {**spec, **containers}})


def _with_requests(container: Any) -> Any:
    wants = container.get("resources") if isinstance(container, dict) else None
    if not isinstance(wants, dict):
        return container
    limits, requests = wants.get("limits"), wants.get("requests") or {}
    if not isinstance(limits, dict) or not isinstance(requests, dict):
        return container
    return {**container, "resources": {**wants, "requests": {**limits, **requests}}}


def _of_namespaces(manifest: Manifest, quota: Quota) -> ResourceList:
    """What the quota counts of it as an object in a namespace. Raises Refused and InvalidManifest."""
    if not quota.of_objects or quota.promises:
        return {}
    resource = GroupResource(plural_of(manifest.kind), manifest.group)
    evaluator = evaluator_of(resource)
    if evaluator is None:
        return {}
    raw = msgspec.Raw(_encode(manifest.body))
    version = manifest.api_version.rpartition("/")[2]
    sent = AsSent(version, raw, msgspec.Raw(b"null"))
    new = _decoded(manifest, evaluator.type)
    write = Write(operation=namespaced.CREATE, new=new, now=time.time(), sent=sent)
    return need_of(evaluator, quota, write, {})


def plural_of(kind: str) -> str:
    """The usual name of the resource."""
    lower = kind.lower()
    if lower == "endpoints":
        return lower
    if lower.endswith("s"):
        return f"{lower}es"
    return f"{lower.removesuffix('y')}ies" if lower.endswith("y") else f"{lower}s"


def _decoded(manifest: Manifest, type: Any) -> Any:
    """Raises InvalidManifest."""
    try:
        return msgspec.json.decode(_encode(manifest.body), type=type)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidManifest(f"{manifest.shown} cannot be read: {error}") from None
