"""The custom resource definitions of this version: charts/crds, which is also in the wheel."""

from __future__ import annotations

from importlib import resources
from typing import TypeVar

import msgspec
import yaml

from common.kube.client.meta import Object
from common.kube.client.resource import Resource

T = TypeVar("T")

CUSTOM_RESOURCES = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, Object
)


def definition(resource: Resource[Object], shape: type[T]) -> T:
    """Of this kind, decoded as `shape`."""
    text = (resources.files("common.api") / "crds" / f"{resource.kind.lower()}.yaml").read_bytes()
    return msgspec.convert(yaml.safe_load(text), shape)
