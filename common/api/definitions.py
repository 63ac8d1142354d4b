"""The custom resource definitions of this version: charts/crds, which is also in the wheel."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from typing import TypeVar

import msgspec.yaml

from common.kube.client.meta import Object
from common.kube.client.resource import Resource

T = TypeVar("T")

CUSTOM_RESOURCES = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, Object
)
_FILES = resources.files("common.api") / "crds"


def definition(resource: Resource[Object], shape: type[T]) -> T:
    """Of this kind, decoded as `shape`."""
    return _read(_FILES / f"{resource.kind.lower()}.yaml", shape)


def definitions(shape: type[T]) -> list[T]:
    return [_read(file, shape) for file in sorted(_FILES.iterdir(), key=lambda file: file.name)]


def _read(file: Traversable, shape: type[T]) -> T:
    return msgspec.yaml.decode(file.read_bytes(), type=shape)
