"""Kubernetes' own kinds, as far as this project reads them."""

from __future__ import annotations

from common.api.types import SecretRef
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.client.meta import Object
from common.kube.client.resource import Resource


class Secret(Object, frozen=True, kw_only=True):
    data: dict[str, bytes] = {}


class ConfigMap(Object, frozen=True, kw_only=True):
    data: dict[str, str] = {}


SECRETS = Resource("", "v1", "secrets", "Secret", True, Secret)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", True, ConfigMap)


def kubeconfig_text(secret: Secret | None, namespace: str, reference: SecretRef) -> str:
    """What `reference` points to; `secret` is None where there is no such Secret.

    Raises InvalidKubeconfig, which names Secret and key, and holds nothing of what the Secret has.
    """
    where = f"secret {namespace}/{reference.name}"
    if secret is None:
        raise InvalidKubeconfig(f"{where} does not exist")
    content = secret.data.get(reference.key)
    if not content:
        keys = ", ".join(sorted(secret.data)) or "none"
        raise InvalidKubeconfig(f"{where} has no key {reference.key}; its keys: {keys}")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidKubeconfig(f"{where}, key {reference.key}: not text") from None
