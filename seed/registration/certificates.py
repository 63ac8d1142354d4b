"""Where the webhook's certificate comes from, and the names by which the webhook is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from common.kube.client.api_client import Cluster
from common.server.certificate_files import CertificateFiles
from common.server.serving_certificate import Certificates

ServingCertificates = Certificates | CertificateFiles


def certificates_of(
    cluster: Cluster,
    namespace: str,
    directory: Path | None,
    *,
    base_url: str,
    service: str | None,
    on_bundle: Callable[[], None],
) -> ServingCertificates:
    """Those in the `directory`, or our own."""
    if directory is not None:
        return CertificateFiles(directory, on_bundle=on_bundle)
    return Certificates(cluster, namespace, names(base_url, namespace, service), on_bundle=on_bundle)


def names(base_url: str, namespace: str, service: str | None) -> list[str]:
    host = urlsplit(base_url).hostname
    assert host is not None, "https_url has checked it"
    return [host] if service is None else [host, f"{service}.{namespace}.svc"]
