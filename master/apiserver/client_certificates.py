"""Users by client certificate, as the API server knows them: CN is the name, each O a group.

The API server says in a ConfigMap which CA signs these certificates (--client-ca-file). It is followed, so another CA
counts at once. The handshake verifies a certificate; here it is read.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from common.api.core import CONFIG_MAPS, ConfigMap
from common.kube.client.api_client import Cluster
from common.kube.client.resource import by_name
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from common.server.access_reviews import User

log = logging.getLogger(__name__)

NAMESPACE, NAME, KEY = "kube-system", "extension-apiserver-authentication", "client-ca-file"
MAX_READ = 1024  # certificates that are kept as they were read

_AUTHENTICATED = "system:authenticated"
_CREDENTIAL = "authentication.kubernetes.io/credential-id"


class ClientAuthority:
    """`trust` gets the CA, whenever it is another; empty: there is none. It raises ssl.SSLError for what is no CA, and
    then what was trusted before stays."""

    def __init__(self, cluster: Cluster, trust: Callable[[str], None]) -> None:
        self._trust = trust
        self._trusted = ""
        self._reflector: Reflector[ConfigMap] = Reflector(
            cluster,
            CONFIG_MAPS,
            namespace=NAMESPACE,
            field_selector=by_name(NAME),
            on_change=self._changed,
        )

    async def run(self) -> None:
        """Until cancelled. While the ConfigMap cannot be read, the reflector says so in the log."""
        await self._reflector.run()

    def _changed(self, change: Change[ConfigMap]) -> None:
        authority = change.new.data.get(KEY, "") if change.new is not None else ""
        if authority == self._trusted:
            return
        try:
            self._trust(authority)
        except (ssl.SSLError, ValueError) as error:
            log.warning("the CA of client certificates cannot be read", extra={"config_map": NAME, "error": str(error)})
            return
        self._trusted = authority
        log.info("client certificates are accepted" if authority else "client certificates are not accepted")


class Certified(msgspec.Struct, frozen=True):
    """Times are those in Unix time between which the certificate is valid."""

    user: User
    begins: float
    ends: float

    def valid(self, now: datetime) -> bool:
        return self.begins <= now.timestamp() <= self.ends


@lru_cache(maxsize=MAX_READ)
def read(certificate: bytes) -> Certified | None:
    """None: it names no user. `certificate` is DER that the handshake has verified."""
    try:
        found = x509.load_der_x509_certificate(certificate)
        names = [str(each.value) for each in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        groups = [str(each.value) for each in found.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    except (ValueError, x509.InvalidVersion):  # OpenSSL accepts what cryptography does not
        return None
    if not names or not names[-1]:
        return None
    extra = {_CREDENTIAL: [f"X509SHA256={hashlib.sha256(certificate).hexdigest()}"]}
    user = User(username=names[-1], groups=[*groups, _AUTHENTICATED], extra=extra)
    return Certified(user, found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp())


def user_of(certificate: bytes) -> User | None:
    """Who the certificate is of now, if it is somebody's."""
    found = read(certificate) if certificate else None
    return found.user if found is not None and found.valid(datetime.now(UTC)) else None
