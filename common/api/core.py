"""Kubernetes' own kinds, as far as this project reads them."""

from __future__ import annotations

from common.kube.client.meta import Object
from common.kube.client.resource import Resource


class Secret(Object, frozen=True, kw_only=True):
    data: dict[str, bytes] = {}


SECRETS = Resource("", "v1", "secrets", "Secret", True, Secret)
