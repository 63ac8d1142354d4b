"""Kubernetes' own kinds, as far as this project reads them."""

from __future__ import annotations

import base64

import pytest

from common.api.core import SECRETS, Secret, kubeconfig_text
from common.api.types import SecretRef
from common.kube.client.kubeconfig import InvalidKubeconfig

REFERENCE = SecretRef(name="eu-1", key="config")


def secret(**data: bytes) -> Secret:
    encoded = ", ".join(f'"{key}": "{base64.b64encode(value).decode()}"' for key, value in data.items())
    return SECRETS.decode(f'{{"metadata": {{"name": "eu-1"}}, "data": {{{encoded}}}}}'.encode())


def test_the_text_is_what_the_secret_has_under_the_key() -> None:
    assert kubeconfig_text(secret(config=b"apiVersion: v1", other=b"x"), "ns", REFERENCE) == "apiVersion: v1"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "secret ns/eu-1 does not exist"),
        (secret(), "secret ns/eu-1 has no key config; its keys: none"),
        (secret(config=b""), "secret ns/eu-1 has no key config; its keys: config"),
        (secret(b=b"top-secret", a=b"top-secret"), "secret ns/eu-1 has no key config; its keys: a, b"),
        (secret(config=b"top-secret \xff"), "secret ns/eu-1, key config: not text"),
    ],
)
def test_what_is_wrong_is_said_without_what_the_secret_has(found: Secret | None, message: str) -> None:
    with pytest.raises(InvalidKubeconfig) as error:
        kubeconfig_text(found, "ns", REFERENCE)
    assert str(error.value) == message
