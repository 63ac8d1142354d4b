"""What no condition says: leaders, tokens and certificates that end, and what an uninstallation left. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509

from cli.doctor import cures
from cli.doctor.findings import Finding, Place
from common.api.core import Secret
from common.kube.client import bounded_yaml, service_account
from common.kube.controller.leader_election import LeaseObject
from master.quotas import staleness

LED_WITHIN = 60.0  # seconds since the last renewal
TOKEN_AHEAD = timedelta(days=7)
CERTIFICATE_AHEAD = timedelta(days=14)

_CERTIFICATES = ("tls.crt", "ca.crt")


def leads(lease: LeaseObject | None, now: datetime) -> bool:
    if lease is None or not lease.spec.holder_identity or not lease.spec.renew_time:
        return False
    try:
        return staleness.seconds_since(lease.spec.renew_time, now) <= LED_WITHIN
    except ValueError:
        return False


def leader(program: str, leases: Sequence[LeaseObject], now: datetime, *, everywhere: bool) -> list[Finding]:
    """`leases`: of the program, one in each namespace in which it ran. `everywhere`: there are no others."""
    leading = sorted(each.metadata.namespace for each in leases if leads(each, now))
    if len(leading) == 1:
        return []
    if leading:
        message = f"it leads in each of the namespaces {', '.join(leading)}, and a cluster has at most one"
        return [Finding("Lease", [program], "", "SeveralLead", message, cures.SEVERAL_LEAD)]
    newest = max(leases, key=lambda each: each.spec.renew_time or "", default=None)
    if newest is None:
        return [Finding("Lease", [program], "", "NoLeader", "no replica leads in any namespace", cures.NO_LEADER)]
    last = staleness.age(newest.spec.renew_time or "", now)
    since = f"has led for {last}, in namespace" if last and newest.spec.holder_identity else "leads in namespace"
    message = f"no replica {since} {newest.metadata.namespace}: what it reports is not current"
    cure = cures.NO_LEADER if everywhere else f"{cures.NO_LEADER}; {cures.ELSEWHERE}"
    return [Finding("Lease", [program], "", "NoLeader", message, cure)]


def tokens(kubeconfigs: Mapping[str, str], places: Mapping[str, Place], now: datetime) -> list[Finding]:
    """By seed."""
    found = []
    for seed, text in sorted(kubeconfigs.items()):
        ends = min((life.ends for token in _tokens(text) if (life := service_account.read(token))), default=None)
        if ends is not None and (end := datetime.fromtimestamp(ends, UTC)) - now < TOKEN_AHEAD:
            message = _ends("the master's token", end, now)
            cure = cures.TOKEN if places.get(seed) == "added" else cures.OWN_TOKEN
            found.append(Finding(cures.SEED, [f"seed {seed}"], "", "TokenEnds", message, cure, seed))
    return found


def certificates(secret: Secret | None, now: datetime) -> list[Finding]:
    """Of the webhook. Without the Secret they come from elsewhere."""
    found = []
    for key in _CERTIFICATES if secret is not None else ():
        assert secret is not None
        name = f"secret {secret.metadata.key}"
        try:
            end = x509.load_pem_x509_certificate(secret.data.get(key, b"")).not_valid_after_utc
        except ValueError:
            message = f"{key} is no certificate"
            found.append(Finding("Secret", [name], "", "CertificateUnreadable", message, cures.CERTIFICATE))
            continue
        if end - now < CERTIFICATE_AHEAD:
            found.append(Finding("Secret", [name], "", "CertificateEnds", _ends(key, end, now), cures.CERTIFICATE))
    return found


def left_over(configurations: Sequence[str]) -> list[Finding]:
    """Webhook configurations where no agent leads, and none is installed."""
    if not configurations:
        return []
    message = "webhooks are registered, and no agent leads or is installed as a Deployment here"
    return [Finding("WebhookConfiguration", sorted(configurations), "", "LeftOver", message, cures.LEFT_OVER)]


def _tokens(kubeconfig: str) -> Iterable[str]:
    try:
        found: Any = bounded_yaml.load(kubeconfig)
        return [str(user["user"]["token"]) for user in found["users"] if "token" in (user.get("user") or {})]
    except (bounded_yaml.InvalidYaml, KeyError, TypeError, AttributeError):
        return []


def _ends(what: str, end: datetime, now: datetime) -> str:
    at = end.strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{what} ended at {at}" if end <= now else f"{what} ends at {at}"
