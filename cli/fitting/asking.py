"""Asks an API server what fits, by dry runs: its webhooks answer them as they answer what is stored."""

from __future__ import annotations

from typing import Any

import msgspec

from cli.outcome import Failed
from common.api.labels import FITS_ANNOTATION
from common.kube.client import api_discovery, deep_json
from common.kube.client.api_client import MERGE_PATCH, Cluster
from common.kube.client.connection import JSON
from common.kube.client.errors import ApiError, Forbidden, NotFound
from common.kube.client.resource import Resource
from seed.previews import objects
from seed.previews.objects import InvalidManifest, Json, Manifest
from seed.webhooks import fits
from seed.webhooks.fits import Fits

OURS = {"QuotaExceeded", "QuotaUnavailable", "NotSpecified", "UnknownProject", "SeedLost", "MachineNotSized"}
"""Reasons of the causes of refusals."""

_json: msgspec.json.Decoder[Json] = msgspec.json.Decoder()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """`answer` is None where nobody answered. `exists`: it was an edit. `note`: see objects.Made."""

    what: str
    group: str
    count: int
    exists: bool = False
    answer: Fits | None = None
    note: str = ""


async def ask(cluster: Cluster, manifest: Manifest, namespace: str, replicas: int | None) -> list[Found]:
    """Raises Failed: what is no matter of quotas keeps it from being created."""
    manifest = objects.with_replicas(manifest, replicas)
    count, shown = objects.copies(manifest, replicas), manifest.shown
    if count > 1:
        manifest = unnamed(manifest)
    found = await _one(cluster, manifest, namespace, shown, count)
    if not manifest.is_workload:
        return [found.found]
    asked = [found.found] if found.found.answer is not None and found.found.answer.quotas else []
    try:
        makes = objects.made_by(manifest, found.after or manifest.body, found.before)
    except InvalidManifest as error:
        raise Failed(str(error)) from None
    for made in makes:
        inner = await _one(cluster, made.manifest, manifest.namespace or namespace, made.what, made.count)
        asked.append(msgspec.structs.replace(inner.found, note=made.note))
    return asked or [found.found]


class _Asked(msgspec.Struct, frozen=True):
    """`after` is None where the dry run was refused by a quota."""

    found: Found
    before: Json | None
    after: Json | None


async def _one(cluster: Cluster, manifest: Manifest, namespace: str, what: str, count: int) -> _Asked:
    resource = await _served(cluster, manifest)
    place = _place(resource, manifest, namespace)
    before = await _present(cluster, resource, manifest, place)
    after: Json | None = None
    answer: Fits | None = None
    try:
        # First as it is: what else refuses it says so here.
        after = await _dry_run(cluster, resource, manifest, place, manifest.body, edit=before is not None)
        body = objects.annotated(manifest.body, FITS_ANNOTATION, str(count))
        await _dry_run(cluster, resource, manifest, place, body, edit=before is not None)
    except ApiError as error:
        answer = _answer(error)
        if answer is None and _by_quota(error):
            body = objects.annotated(manifest.body, FITS_ANNOTATION, str(count))
            answer = await _refused(cluster, resource, manifest, place, body, edit=before is not None)
        if answer is None:
            raise Failed(f"{what}: {error.message}") from None
    found = Found(what=what, group=manifest.group, count=count, exists=before is not None, answer=answer)
    return _Asked(found, before, after)


async def _refused(
    cluster: Cluster, resource: Resource[Any], manifest: Manifest, place: str | None, body: Json, *, edit: bool
) -> Fits | None:
    try:
        await _dry_run(cluster, resource, manifest, place, body, edit=edit)
    except ApiError as error:
        return _answer(error)
    return None


def _by_quota(error: ApiError) -> bool:
    return any(cause.reason in OURS for cause in error.causes)


def _answer(error: ApiError) -> Fits | None:
    """Raises Failed."""
    for cause in error.causes:
        if isinstance(error, Forbidden) and cause.reason == fits.REASON:
            try:
                return fits.read(cause.message)
            except msgspec.MsgspecError as problem:
                raise Failed(f"the seed's agent answers what cannot be read: {problem}") from None
    return None


async def _served(cluster: Cluster, manifest: Manifest) -> Resource[Any]:
    try:
        found = await api_discovery.find_kind(cluster, manifest.api_version, manifest.kind)
    except ApiError as error:
        raise Failed(error.message) from None
    if found is None:
        raise Failed(
            f"{cluster.server} does not serve {manifest.kind} of {manifest.api_version}: --kubeconfig and --context "
            "name the cluster in which it is to be created"
        )
    return found


def _place(resource: Resource[Any], manifest: Manifest, namespace: str) -> str | None:
    return (manifest.namespace or namespace) if resource.namespaced else None


async def _present(cluster: Cluster, resource: Resource[Any], manifest: Manifest, namespace: str | None) -> Json | None:
    """As it is. None: it is to be created."""
    if not manifest.name:
        return None
    try:
        content = await cluster.request(
            "GET", _path(resource, namespace, manifest.name), verb="get", plural=resource.plural
        )
        return deep_json.read(_json.decode, content, "the answer")
    except NotFound:
        return None
    except ApiError as error:
        raise Failed(f"{manifest.shown}: {error.message}") from None


async def _dry_run(
    cluster: Cluster, resource: Resource[Any], manifest: Manifest, namespace: str | None, body: Json, *, edit: bool
) -> Json:
    """As the API server would store it. Raises ApiError."""
    path = _path(resource, namespace, manifest.name if edit else None)
    content = await cluster.request(
        "PATCH" if edit else "POST",
        f"{path}?dryRun=All",
        msgspec.json.encode(body),
        MERGE_PATCH if edit else JSON,
        verb="dry run of",
        plural=resource.plural,
    )
    return deep_json.read(_json.decode, content, "the answer")


def _path(resource: Resource[Any], namespace: str | None, name: str | None) -> str:
    try:
        return resource.path(namespace, name)
    except ValueError as error:
        raise Failed(str(error)) from None


def unnamed(manifest: Manifest) -> Manifest:
    """Several of an object are new ones."""
    if not manifest.name:
        return manifest
    metadata = {field: value for field, value in manifest.body["metadata"].items() if field != "name"}
    metadata["generateName"] = f"{manifest.name}-"
    return Manifest(manifest.api_version, manifest.kind, {**manifest.body, "metadata": metadata})
