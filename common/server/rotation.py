"""When a serving certificate and its CA are renewed, and what is written then. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from common.server.pki import (
    Pair,
    Policy,
    Unusable,
    _read_certificate,
    _read_pair,
    alternative_names,
    make_ca,
    make_serving,
)

MAX_NAMES = 64


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


_PAIRS = {"ca": ("ca.crt", "ca.key"), "serving": ("tls.crt", "tls.key"), "next_ca": ("next-ca.crt", "next-ca.key")}
_PREVIOUS = "previous-ca.crt"
KEYS = (*(key for pair in _PAIRS.values() for key in pair), _PREVIOUS)


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
        except Unusable as unusable:
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
        except Unusable as unusable:
            problems.append(str(unusable))
    return Contents(ca, serving, pairs["next_ca"], previous, tuple(problems))


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
