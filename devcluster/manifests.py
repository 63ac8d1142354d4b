"""Applies YAML manifests server-side, in an order that works, and waits until new resource types are served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from devcluster.controlplane import ApiServer
from devcluster.patience import Deadline

MACHINE_CRDS = Path(__file__).with_name("manifests") / "machine-crd.yaml"

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # six times quicker, if it was built

_CRD = "CustomResourceDefinition"
_FIRST = (_CRD, "Namespace")
_SERVED_TIMEOUT_SECONDS = 30.0
_POLL_SECONDS = 0.1
_BUSY = (429, 504)  # what an API server says that has too much to do

Manifest = Mapping[str, object]
_Kind = Mapping[str, Any]  # as discovery tells of it


class ManifestError(Exception):
    """A manifest is not a Kubernetes object, or the API server refused it. The message names the object and why."""


@dataclass(frozen=True)
class _Identity:
    api_version: str
    kind: str
    name: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def load(*paths: Path) -> list[Manifest]:
    """Every object in the YAML files, and in the directories' `*.yaml`, in that order. Raises ManifestError."""
    manifests: list[Manifest] = []
    for path in paths:
        for file in sorted(path.glob("*.yaml")) if path.is_dir() else [path]:
            try:
                documents = list(yaml.load_all(file.read_text(), _Loader))
            except (OSError, yaml.YAMLError) as error:
                raise ManifestError(f"{file}: {error}") from error
            for document in documents:
                if document is None:
                    continue
                if not isinstance(document, dict):
                    raise ManifestError(f"{file}: not a Kubernetes object: {str(document)[:80]!r}")
                manifests.append(document)
    return manifests


async def apply(server: ApiServer, manifests: Iterable[Manifest], *, user: str = "admin") -> None:
    """Create or update the objects, resource types and namespaces first; an object without a namespace goes to default.

    Returns when they are stored and every new resource type is served. Raises ManifestError.
    """
    identified = [(_identify(manifest), manifest) for manifest in manifests]
    known: dict[str, list[_Kind]] = {}
    try:
        async with server.session(user) as session:
            for kind in _FIRST:
                chosen = [(identity, manifest) for identity, manifest in identified if identity.kind == kind]
                await asyncio.gather(*(_apply(session, known, identity, manifest) for identity, manifest in chosen))
                if kind == _CRD:  # one after the other: they are served at about the same time, and asking costs
                    for identity, _ in chosen:
                        await _served(session, identity)
            for identity, manifest in identified:
                if identity.kind not in _FIRST:
                    await _apply(session, known, identity, manifest)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ManifestError(f"{server.name} did not answer: {error!r}") from error


def _identify(manifest: Manifest) -> _Identity:
    metadata = manifest.get("metadata")
    identity = (manifest.get("apiVersion"), manifest.get("kind"), isinstance(metadata, dict) and metadata.get("name"))
    match identity:
        case (str(api_version), str(kind), str(name)) if isinstance(metadata, dict):
            return _Identity(api_version, kind, name, str(metadata.get("namespace", "default")))
    raise ManifestError(f"not a Kubernetes object with apiVersion, kind and metadata.name: {str(manifest)[:80]}")


async def _apply(
    session: aiohttp.ClientSession, known: dict[str, list[_Kind]], identity: _Identity, manifest: Manifest
) -> None:
    path = f"{await _collection(session, known, identity)}/{identity.name}"
    headers = {"Content-Type": "application/apply-patch+yaml"}
    parameters = {"fieldManager": "devcluster", "force": "true"}
    deadline = Deadline(_SERVED_TIMEOUT_SECONDS)
    while True:
        try:
            async with session.patch(path, data=json.dumps(manifest), headers=headers, params=parameters) as answer:
                if answer.status < 300:
                    return
                if answer.status not in _BUSY or deadline.passed():
                    raise ManifestError(f"{identity}: {await _message(answer)}")
        except aiohttp.ServerDisconnectedError:  # what takes an API server too long it may cut off
            if deadline.passed():
                raise
        await asyncio.sleep(_POLL_SECONDS)


async def _collection(session: aiohttp.ClientSession, known: dict[str, list[_Kind]], identity: _Identity) -> str:
    """Where objects of its kind are. What an API version serves is asked once, and stays `known`."""
    root = f"/{'apis' if '/' in identity.api_version else 'api'}/{identity.api_version}"
    if identity.api_version not in known:
        async with session.get(root) as answer:
            if answer.status != 200:
                message = await _message(answer)
                raise ManifestError(f"{identity}: the cluster has no API {identity.api_version}: {message}")
            known[identity.api_version] = (await answer.json())["resources"]
    for resource in known[identity.api_version]:
        if resource["kind"] == identity.kind and "/" not in resource["name"]:
            namespace = f"/namespaces/{identity.namespace}" if resource["namespaced"] else ""
            return f"{root}{namespace}/{resource['name']}"
    raise ManifestError(f"{identity}: the cluster has no such kind in {identity.api_version}")


async def _served(session: aiohttp.ClientSession, crd: _Identity) -> None:
    deadline = Deadline(_SERVED_TIMEOUT_SECONDS)
    while missing := await _missing(session, crd):
        if deadline.passed():
            raise ManifestError(f"{crd} is not served in time: {missing}")
        await asyncio.sleep(_POLL_SECONDS)


async def _missing(session: aiohttp.ClientSession, crd: _Identity) -> str:
    """What keeps the resource type from use; empty if nothing does."""
    async with session.get(f"/apis/{crd.api_version}/customresourcedefinitions/{crd.name}") as answer:
        definition = await answer.json()
    conditions = definition.get("status", {}).get("conditions") or ()
    if not any(entry["type"] == "Established" and entry["status"] == "True" for entry in conditions):
        return "; ".join(f"{it['type']}={it['status']} {it['message']}" for it in conditions) or "no conditions yet"
    # Established says that it may be served; answers and discovery follow a moment later.
    plural, _, group = crd.name.partition(".")
    version = next(version["name"] for version in definition["spec"]["versions"] if version["served"])
    async with session.get(f"/apis/{group}/{version}/{plural}", params={"limit": "1"}) as answer:
        if answer.status != 200:
            return await _message(answer)
    async with session.get(f"/apis/{group}/{version}") as answer:
        if answer.status != 200:
            return await _message(answer)
        listed = any(resource["name"] == plural for resource in (await answer.json())["resources"])
    return "" if listed else "not in the discovery document"


async def _message(answer: aiohttp.ClientResponse) -> str:
    text = await answer.text()
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status}: {text[:200]}"
