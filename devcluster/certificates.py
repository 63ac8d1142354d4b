"""A certificate authority and serving certificates for 127.0.0.1, made anew for every run."""

from __future__ import annotations

from dataclasses import dataclass

import trustme

_NAMES = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True)
class Serving:
    """What a server needs, and `ca` for those who call it. All PEM."""

    ca: str
    certificate: str
    key: str


def serving(name: str, *hosts: str) -> Serving:
    """A fresh authority named after `name`, and a certificate of it for 127.0.0.1, localhost and `hosts`."""
    authority = trustme.CA(organization_unit_name=f"{name}-ca")
    made = authority.issue_cert(*_NAMES, *hosts, common_name=name)
    certificate, *_ = made.cert_chain_pems
    return Serving(_text(authority.cert_pem), _text(certificate), _text(made.private_key_pem))


def _text(blob: trustme.Blob) -> str:
    return blob.bytes().decode()
