"""What manifests ask for: which objects, how many of each, and which pods and claims they make. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from seed.machines import deployments
from seed.machines.deployments import Deployment

MACHINES = ("cluster.k8s.io", "cluster.x-k8s.io")
"""Groups whose Machines are always asked about."""

SCALED = {(group, kind) for group in MACHINES for kind in ("MachineDeployment", "MachineSet", "MachinePool")}
"""What has replicas that it is asked about itself."""

_APPS = {("apps", kind) for kind in ("Deployment", "ReplicaSet", "StatefulSet")}
WORKLOADS = {*_APPS, ("", "ReplicationController"), ("batch", "Job")}
"""What makes pods, which are asked about."""

_UNKNOWN = {
    ("apps", "DaemonSet"): "how many pods it makes depends on the nodes: ask for a Pod with --replicas",
    ("batch", "CronJob"): "its Jobs run at other times: ask for a Job",
}
_SERVERS = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "selfLink",
    "deletionTimestamp",
)

Json = dict[str, Any]


class Manifest(msgspec.Struct, frozen=True):
    api_version: str
    kind: str
    body: Json

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def name(self) -> str:
        return str(self.body["metadata"].get("name") or "")

    @property
    def namespace(self) -> str:
        return str(self.body["metadata"].get("namespace") or "")

    @property
    def shown(self) -> str:
        return f"{self.kind.lower()}/{self.name or str(self.body['metadata'].get('generateName') or '?')}"

    @property
    def is_workload(self) -> bool:
        return (self.group, self.kind) in WORKLOADS

    @property
    def is_scaled(self) -> bool:
        return (self.group, self.kind) in SCALED


class InvalidManifest(Exception):
    """`str()` says what is wrong with it, for whoever wrote it."""


def of_documents(documents: Iterable[object]) -> list[Manifest]:
    """Of decoded YAML or JSON, also of a List. Raises InvalidManifest."""
    return [_manifest(each) for document in documents if document is not None for each in _objects(document)]


def _objects(document: object) -> Iterator[object]:
    """Raises InvalidManifest."""
    waiting = [document]
    while waiting:
        each = waiting.pop()
        if not (isinstance(each, dict) and str(each.get("kind")).endswith("List") and "items" in each):
            yield each
            continue
        items = each["items"] or []
        if not isinstance(items, list):
            raise InvalidManifest(f"items of the {each['kind']} are no list")
        waiting += reversed(items)


def _manifest(document: object) -> Manifest:
    if not isinstance(document, dict):
        raise InvalidManifest("there is something that is no object of Kubernetes")
    api_version, kind, metadata = document.get("apiVersion"), document.get("kind"), document.get("metadata") or {}
    if not isinstance(api_version, str) or not isinstance(kind, str) or not isinstance(metadata, dict):
        raise InvalidManifest("an object has no apiVersion, kind or metadata")
    made = Manifest(api_version, kind, {**copy.deepcopy(document), "metadata": dict(metadata)})
    made.body.pop("status", None)
    for field in _SERVERS:
        made.body["metadata"].pop(field, None)
    if not isinstance(made.body.get("spec", {}), dict):
        raise InvalidManifest(f"{made.shown}: its spec is no mapping")
    if (made.group, kind) in _UNKNOWN:
        raise InvalidManifest(f"{made.shown}: {_UNKNOWN[made.group, kind]}")
    return made


def with_replicas(manifest: Manifest, replicas: int | None) -> Manifest:
    """As many as are asked for; for a Job pods that run at a time. Others than what scales are as they were."""
    if replicas is None or not (manifest.is_scaled or manifest.is_workload):
        return manifest
    spec = {**manifest.body.get("spec", {})}
    if manifest.kind == "Job":
        spec |= {"parallelism": replicas, "completions": max(replicas, _number(spec.get("completions"), replicas))}
    else:
        spec["replicas"] = replicas
    return Manifest(manifest.api_version, manifest.kind, {**manifest.body, "spec": spec})


def copies(manifest: Manifest, replicas: int | None) -> int:
    """Of an object that has no replicas of its own."""
    return 1 if replicas is None or manifest.is_scaled or manifest.is_workload else replicas


class Made(msgspec.Struct, frozen=True):
    """What a workload makes beyond what is there: `count` of an object. `note`: what is not in that."""

    what: str
    manifest: Manifest
    count: int
    note: str = ""


def made_by(manifest: Manifest, after: Json, before: Json | None) -> Sequence[Made]:
    """`after`: the workload as the API server has filled it in. `before`: as it is. Raises InvalidManifest."""
    spec = after.get("spec", {})
    template = spec.get("template")
    if not isinstance(template, dict):
        raise InvalidManifest(f"{manifest.shown} has no spec.template")
    more, note = _more(manifest, after, before)
    if not more:
        return ()
    found = [Made(f"pods of {manifest.shown}", _pod(manifest, template), more, note)]
    if manifest.kind == "StatefulSet":
        claims = spec.get("volumeClaimTemplates") or []
        if not isinstance(claims, list):
            raise InvalidManifest(f"{manifest.shown}: spec.volumeClaimTemplates is no list")
        for each in claims:
            claim = _mapping(each, manifest, "a claim")
            name = _mapping(claim.get("metadata"), manifest, "metadata of a claim").get("name")
            found.append(Made(f"claims {name} of {manifest.shown}", _claim(manifest, claim), more))
    return found


def _more(manifest: Manifest, after: Json, before: Json | None) -> tuple[int, str]:
    """Pods beyond those that exist, and what is to be said of them."""
    spec = after.get("spec", {})
    if manifest.kind == "Job":
        running = _number((before or {}).get("status", {}).get("active"), 0)
        at_a_time = _number(spec.get("parallelism"), 1)
        completions = _number(spec.get("completions"), at_a_time)
        return max(min(at_a_time, completions) - running, 0), ""
    wanted = _number(spec.get("replicas"), 1)
    if before is None:
        return wanted, ""
    more = max(wanted - _number(before.get("status", {}).get("replicas"), 0), 0)
    if manifest.kind not in ("Deployment", "StatefulSet") or _template(after) == _template(before):
        return more, ""
    surge = deployments.surge(_deployment(after)) if manifest.kind == "Deployment" and wanted else 0
    at_first = f", {surge} of them before older ones go" if surge else ""
    return more + surge, f"its pods are replaced{at_first}; what each needs more than before is not in this"


def _template(workload: Json) -> object:
    return workload.get("spec", {}).get("template")


def _deployment(workload: Json) -> Deployment:
    try:
        return msgspec.json.decode(msgspec.json.encode(workload), type=Deployment)
    except msgspec.MsgspecError as error:
        raise InvalidManifest(f"the Deployment cannot be read: {error}") from None


def _pod(manifest: Manifest, template: Json) -> Manifest:
    given = _mapping(template.get("metadata"), manifest, "template.metadata")
    named = {field: _mapping(given.get(field), manifest, field) for field in ("labels", "annotations")}
    metadata = {field: dict(names) for field, names in named.items() if names}
    return _of(manifest, "Pod", "v1", metadata, template.get("spec") or {})


def _claim(manifest: Manifest, claim: Json) -> Manifest:
    return _of(manifest, "PersistentVolumeClaim", "v1", {}, claim.get("spec") or {})


def _of(manifest: Manifest, kind: str, api_version: str, metadata: Json, spec: Json) -> Manifest:
    name = {"generateName": f"{manifest.name or 'fits'}-"}
    body = {"apiVersion": api_version, "kind": kind, "metadata": {**metadata, **name}, "spec": spec}
    return Manifest(api_version, kind, body)


def annotated(body: Mapping[str, Any], annotation: str, value: str) -> Json:
    metadata = body["metadata"]
    annotations = {**(metadata.get("annotations") or {}), annotation: value}
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def _number(found: object, absent: int) -> int:
    return max(found, 0) if isinstance(found, int) and not isinstance(found, bool) else absent


def _mapping(found: object, manifest: Manifest, field: str) -> Json:
    """Nothing is an empty one. Raises InvalidManifest."""
    if found is not None and not isinstance(found, dict):
        raise InvalidManifest(f"{manifest.shown}: {field} in it is no mapping")
    return found or {}
