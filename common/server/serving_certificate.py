"""The webhook's certificates, which look after themselves: one CA and one serving certificate in one Secret.

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
import ipaddress
import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from prometheus_client import Gauge

from common.kube.client.api_client import Cluster
from common.server.managed_secret import Correction, OwnSecret

log = logging.getLogger(__name__)

SECRET_NAME = "seedquota-webhook-tls"  # noqa: S105 (its name)
BACKDATE = timedelta(minutes=5)
MAX_NAMES = 64
RECHECK_SECONDS = 60.0

_EXPIRY = Gauge(
    "seedquota_certificate_expiry_timestamp_seconds", "When the certificate expires, in Unix time.", ["certificate"]
)


@dataclass(frozen=True)
class Policy:
    """How long things are valid. `overlap` is what callers are given to learn of a new CA.

    ValueError for times that would break the order of the steps.
    """

    ca_validity: timedelta = timedelta(days=3650)
    serving_validity: timedelta = timedelta(days=365)
    overlap: timedelta = timedelta(days=1)

    def __post_init__(self) -> None:
        # The old CA has a third of its life left when the next one is introduced; the old one is dropped `overlap`
        # after the switch, by the date of a serving certificate that must not have been renewed before.
        if not timedelta(0) < self.overlap * 3 < self.ca_validity or not self.overlap * 3 < self.serving_validity * 2:
            raise ValueError("the overlap must be less than a third of the CA's validity and two thirds of serving's")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    @property
    def issued(self) -> datetime:
        return self.certificate.not_valid_before_utc + BACKDATE

    @property
    def expires(self) -> datetime:
        return self.certificate.not_valid_after_utc

    def due(self, now: datetime) -> bool:
        """At two thirds of its life there is time left for everything that may go wrong with renewing it."""
        return now >= self.issued + (self.expires - self.issued) * 2 / 3

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


@dataclass(frozen=True)
class Contents:
    """What the Secret holds, as far as it can be used. `problems` says why the rest cannot; it holds no secret."""

    ca: Pair | None = None
    serving: Pair | None = None  # signed by `ca`
    next_ca: Pair | None = None
    previous_ca: x509.Certificate | None = None
    problems: tuple[str, ...] = ()

    def bundle(self) -> bytes:
        """Every CA that a caller must trust, PEM."""
        cas = [pair.certificate for pair in (self.ca, self.next_ca) if pair is not None]
        if self.previous_ca is not None:
            cas.append(self.previous_ca)
        cas.sort(key=lambda ca: (ca.not_valid_before_utc, ca.serial_number))  # a switch alone rewrites nothing
        return b"".join(ca.public_bytes(serialization.Encoding.PEM) for ca in cas)


class Action(Enum):
    KEEP = "keep"
    RENEW_SERVING = "renew the serving certificate"
    INTRODUCE_CA = "introduce the next CA"
    SWITCH_CA = "switch to the next CA"
    DROP_CA = "drop the previous CA"
    REPLACE = "replace everything"


@dataclass(frozen=True)
class Decision:
    action: Action
    reason: str = ""


def decide(now: datetime, contents: Contents, names: Iterable[str], policy: Policy) -> Decision:
    """The one next step."""
    ca, serving, next_ca = contents.ca, contents.serving, contents.next_ca
    if ca is None or now >= ca.expires:
        reason = "; ".join(contents.problems) or "the CA has expired"
        if next_ca is not None and now < next_ca.expires:
            return Decision(Action.SWITCH_CA, reason)
        return Decision(Action.REPLACE, reason)
    if next_ca is not None and now >= next_ca.issued + policy.overlap:
        return Decision(Action.SWITCH_CA, "callers have had time to learn of the next CA")
    if next_ca is None and ca.due(now):
        return Decision(Action.INTRODUCE_CA, f"the CA expires at {ca.expires.isoformat()}")
    if serving is None:
        return Decision(Action.RENEW_SERVING, "; ".join(contents.problems))
    if serving.due(now):
        return Decision(Action.RENEW_SERVING, f"it expires at {serving.expires.isoformat()}")
    if missing := set(names) - alternative_names(serving.certificate):
        return Decision(Action.RENEW_SERVING, f"it is not for {', '.join(sorted(missing))}")
    if contents.previous_ca is not None and now >= serving.issued + policy.overlap:
        return Decision(Action.DROP_CA, "nothing signed by it is served any more")
    return Decision(Action.KEEP)


def carry_out(action: Action, now: datetime, contents: Contents, names: Iterable[str], policy: Policy) -> Contents:
    """The contents after the action. New keys are random, the rest follows from the arguments."""
    ca, next_ca = contents.ca, contents.next_ca
    match action:
        case Action.REPLACE:
            made = make_ca(now, policy)
            return Contents(ca=made, serving=make_serving(now, made, names, policy))
        case Action.SWITCH_CA:
            assert next_ca is not None
            previous = ca.certificate if ca is not None else contents.previous_ca
            return Contents(ca=next_ca, serving=make_serving(now, next_ca, names, policy), previous_ca=previous)
        case Action.INTRODUCE_CA:
            return replace(contents, next_ca=make_ca(now, policy), problems=())
        case Action.RENEW_SERVING:
            assert ca is not None
            return replace(contents, serving=make_serving(now, ca, _names(contents, now, names), policy), problems=())
        case Action.DROP_CA:
            return replace(contents, previous_ca=None)
        case Action.KEEP:
            return contents


def _names(contents: Contents, now: datetime, names: Iterable[str]) -> set[str]:
    """While replicas want different names, as during an upgrade, each keeps the other's; age clears them away."""
    wanted = set(names)
    old = contents.serving
    if old is None or old.due(now):
        return wanted
    both = wanted | alternative_names(old.certificate)
    return both if len(both) <= MAX_NAMES else wanted


def make_ca(now: datetime, policy: Policy) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Two CAs in one bundle must not have the same name: some callers pick the issuer by it.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"seedquota webhook CA {serial & 0xFFFFFFFF:08x}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + policy.ca_validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate, key)


def make_serving(now: datetime, ca: Pair, names: Iterable[str], policy: Policy) -> Pair:
    """For DNS names and IP addresses. It never outlives its CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "seedquota webhook")]))
        .issuer_name(ca.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(min(now + policy.serving_validity, ca.expires))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in sorted(set(names))]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False)
        .sign(ca.key, hashes.SHA256())
    )
    return Pair(certificate, key)


def alternative_names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = names.get_values_for_type(x509.IPAddress)
    return {*names.get_values_for_type(x509.DNSName), *(str(address) for address in addresses)}


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


_PAIRS = {"ca": ("ca.crt", "ca.key"), "serving": ("tls.crt", "tls.key"), "next_ca": ("next-ca.crt", "next-ca.key")}
_PREVIOUS = "previous-ca.crt"
KEYS = (*(key for pair in _PAIRS.values() for key in pair), _PREVIOUS)


class _Unusable(ValueError):
    pass


def read(data: Mapping[str, bytes]) -> Contents:
    """The Secret's data as what can be used of it."""
    problems: list[str] = []
    pairs: dict[str, Pair | None] = {}
    for what, (certificate_key, key_key) in _PAIRS.items():
        pairs[what] = None
        if what == "next_ca" and certificate_key not in data:
            continue
        try:
            pairs[what] = _read_pair(data, certificate_key, key_key, is_ca=what != "serving")
        except _Unusable as unusable:
            problems.append(str(unusable))
    ca, serving = pairs["ca"], pairs["serving"]
    if ca is not None and serving is not None:
        try:
            serving.certificate.verify_directly_issued_by(ca.certificate)
        except (ValueError, TypeError, InvalidSignature):
            problems.append("tls.crt is not signed by ca.crt")
            serving = None
    previous: x509.Certificate | None = None
    if _PREVIOUS in data:
        try:
            previous = _read_certificate(data, _PREVIOUS)
        except _Unusable as unusable:
            problems.append(str(unusable))
    return Contents(ca, serving, pairs["next_ca"], previous, tuple(problems))


def _read_pair(data: Mapping[str, bytes], certificate_key: str, key_key: str, *, is_ca: bool) -> Pair:
    certificate = _read_certificate(data, certificate_key)
    try:
        key = serialization.load_pem_private_key(data.get(key_key, b""), password=None)
    except (ValueError, TypeError) as error:
        raise _Unusable(f"{key_key} is not a private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _Unusable(f"{key_key} is not an elliptic curve key")
    if key.public_key() != certificate.public_key():
        raise _Unusable(f"{key_key} does not belong to {certificate_key}")
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError) as error:
        raise _Unusable(f"{certificate_key} does not say whether it is a CA") from error
    if constraints.ca != is_ca:
        raise _Unusable(f"{certificate_key} is {'not ' if is_ca else ''}a CA")
    return Pair(certificate, key)


def _read_certificate(data: Mapping[str, bytes], key: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data.get(key, b""))
    except ValueError as error:
        raise _Unusable(f"{key} is not a certificate in PEM") from error


def write(contents: Contents) -> dict[str, bytes | None]:
    """The Secret's data; None for a key that must go."""
    data: dict[str, bytes | None] = dict.fromkeys(KEYS)
    pairs = {"ca": contents.ca, "serving": contents.serving, "next_ca": contents.next_ca}
    for what, pair in pairs.items():
        if pair is not None:
            certificate_key, key_key = _PAIRS[what]
            data[certificate_key], data[key_key] = pair.certificate_pem(), pair.key_pem()
    if contents.previous_ca is not None:
        data[_PREVIOUS] = contents.previous_ca.public_bytes(serialization.Encoding.PEM)
    return data


class Certificates:
    """Keeps the Secret right and `ssl_context` loaded with what it holds. `run()` it.

    `names`: DNS names and IP addresses by which the webhook is called. `ca_bundle` is PEM, empty until the first
    certificate is there; `on_bundle` is called when it has changed, and must not block.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        names: Iterable[str],
        *,
        policy: Policy | None = None,
        on_bundle: Callable[[], None] | None = None,
        recheck_seconds: float = RECHECK_SECONDS,
    ) -> None:
        self.ssl_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ssl_context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.ca_bundle = b""
        self._names = frozenset(names)
        self._policy = policy or Policy()
        self._on_bundle = on_bundle
        self._loaded: Pair | None = None
        self._ready = asyncio.Event()
        self._secret = OwnSecret(
            cluster,
            namespace,
            SECRET_NAME,
            correct=self._correct,
            on_data=self._take,
            recheck_seconds=recheck_seconds,
        )

    @property
    def error(self) -> str | None:
        """Why the Secret cannot be followed or put right now. What was loaded goes on serving."""
        return self._secret.error

    def not_ready(self) -> str | None:
        """Fits a check of /readyz."""
        if self._loaded is None:
            return self.error or "there is no certificate yet"
        if _now() >= self._loaded.expires:
            return f"the certificate expired at {self._loaded.expires.isoformat()}"
        return None

    async def wait_ready(self, timeout: float) -> None:
        """Until there is something to serve with. Raises TimeoutError, which says what is missing."""
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            raise TimeoutError(f"Secret {self._secret.name}: {self.not_ready()}") from None

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
        return Correction(write(after), why, warn=data is not None and bool(contents.problems))

    def _take(self, data: Mapping[str, bytes]) -> None:
        contents = read(data)
        if contents.ca is None or contents.serving is None:
            return  # will be put right; until then what is loaded serves
        if self._loaded is None or self._loaded.certificate != contents.serving.certificate:
            load(self.ssl_context, contents.serving)
            self._loaded = contents.serving
            log.info("webhook certificate loaded", extra={"expires": contents.serving.expires.isoformat()})
        _EXPIRY.labels("serving").set(contents.serving.expires.timestamp())
        _EXPIRY.labels("ca").set(contents.ca.expires.timestamp())
        if (bundle := contents.bundle()) != self.ca_bundle:
            self.ca_bundle = bundle
            if self._on_bundle is not None:
                self._on_bundle()
        self._ready.set()


def load(context: ssl.SSLContext, pair: Pair) -> None:
    """Into a live context: handshakes from now on use it, open connections go on."""
    with _file(pair.certificate_pem() + pair.key_pem()) as path:
        context.load_cert_chain(path)


@contextmanager
def _file(content: bytes) -> Iterator[Path]:
    """Python loads keys from files only. In memory where the system can, so that no key touches a disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("seedquota-tls", os.MFD_CLOEXEC)
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as stream:
                stream.write(content)
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as stream:  # mode 0600
        stream.write(content)
        stream.flush()
        yield Path(stream.name)


def _now() -> datetime:
    return datetime.now(UTC)
