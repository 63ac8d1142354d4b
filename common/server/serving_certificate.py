"""Certificates that are served and renew themselves: one CA and one serving certificate in one Secret.

Every replica follows the Secret and loads what it finds into the live TLS context. Any replica may change it, by
compare-and-set, and all decide alike: `decide` is a pure function of the Secret, the names wanted and the time. The CA
changes in three steps, each `overlap` after the last, so that no caller ever meets a certificate it cannot verify:

    introduce   the next CA joins the bundle that webhook configurations carry; serving stays with the old one
    switch      the next CA becomes the CA and signs what is served; the old one stays in the bundle
    drop        the old one leaves the bundle

The clock here is the wall clock, unlike elsewhere: validity is written into certificates as a date, and callers judge
it by their own wall clocks. What is not yet valid is left alone: a replica whose clock is behind must not undo the
work of one whose clock is right. For callers whose clocks are behind, certificates are backdated.

Deleting the Secret makes everything anew at once: for keys that leaked. Until the configurations have the new CA, about
a second later, calls fail.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from prometheus_client import Gauge

from common.kube.client.api_client import Cluster
from common.runtime.waiting import within
from common.server.managed_secret import Correction, OwnSecret
from common.server.pki import Pair, Policy, load
from common.server.rotation import Action, Contents, carry_out, decide, read, write

log = logging.getLogger(__name__)

SECRET_NAME = "seedquota-webhook-tls"  # noqa: S105 (its name)
RECHECK_SECONDS = 60.0

EXPIRY = Gauge(
    "seedquota_certificate_expiry_timestamp_seconds", "When the certificate expires, in Unix time.", ["certificate"]
)


class Certificates:
    """Keeps the Secret right and `ssl_context` loaded with what it holds. `run()` it.

    `names`: DNS names and IP addresses by which the server is called. `ca_bundle` is PEM, empty until the first
    certificate is there; `on_bundle` is called when it has changed, and must not block.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        names: Iterable[str],
        *,
        secret: str = SECRET_NAME,
        policy: Policy | None = None,
        on_bundle: Callable[[], None] | None = None,
        recheck_seconds: float = RECHECK_SECONDS,
    ) -> None:
        self.ssl_context = _context()
        self.ca_bundle = b""
        self._names = frozenset(names)
        self._policy = policy or Policy()
        self._on_bundle = on_bundle
        self._loaded: Pair | None = None
        self._ready = asyncio.Event()
        self._secret = OwnSecret(
            cluster,
            namespace,
            secret,
            correct=self._correct,
            on_data=self._take,
            recheck_seconds=recheck_seconds,
        )

    @property
    def error(self) -> str | None:
        """Why the Secret cannot be followed or corrected now. What was loaded goes on serving."""
        return self._secret.error

    def not_ready(self) -> str | None:
        """Fits a check of /readyz."""
        if self._loaded is None:
            return self.error or "there is no certificate yet"
        if _now() >= self._loaded.expires:
            return f"the certificate expired at {self._loaded.expires.isoformat()}"
        return None

    def trust_callers(self, authority: str) -> None:
        """From now on `ssl_context` is another one, which asks callers for a certificate of that CA (PEM). They need
        none, but a handshake with an invalid one fails. Without a CA, it does not ask. Raises ssl.SSLError.
        """
        context = _context()
        if authority:
            context.load_verify_locations(cadata=authority)
            context.verify_mode = ssl.CERT_OPTIONAL
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in an API server, the CA need not be a root
        if self._loaded is not None:
            load(context, self._loaded)
        self.ssl_context = context

    async def wait_ready(self, timeout: float) -> None:
        """Until there is something to serve with. Raises TimeoutError, which says what is missing."""
        if not await within(self._ready, timeout):
            raise TimeoutError(f"Secret {self._secret.name}: {self.not_ready()}")

    async def run(self) -> None:
        """Until cancelled."""
        await self._secret.run()

    def _correct(self, data: Mapping[str, bytes] | None) -> Correction | None:
        contents = read(data) if data is not None else Contents(problems=("it did not exist",))
        now = _now()
        decision = decide(now, contents, self._names, self._policy)
        if decision.action is Action.KEEP:
            return None
        after = carry_out(decision.action, now, contents, self._names, self._policy)
        why = f"{decision.action.value}: {decision.reason}"
        return Correction(write(after), why, warn=bool(data) and bool(contents.problems))

    def _take(self, data: Mapping[str, bytes]) -> None:
        contents = read(data)
        if contents.ca is None or contents.serving is None:
            return  # will be corrected; until then what is loaded serves
        if self._loaded is None or self._loaded.certificate != contents.serving.certificate:
            load(self.ssl_context, contents.serving)
            self._loaded = contents.serving
            log.info("webhook certificate loaded", extra={"expires": contents.serving.expires.isoformat()})
        EXPIRY.labels("serving").set(contents.serving.expires.timestamp())
        EXPIRY.labels("ca").set(contents.ca.expires.timestamp())
        if (bundle := contents.bundle()) != self.ca_bundle:
            self.ca_bundle = bundle
            if self._on_bundle is not None:
                self._on_bundle()
        self._ready.set()


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _now() -> datetime:
    return datetime.now(UTC)
