"""Whether the API servers of a seed's user clusters ask it about Machines: one answer for all of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from common.api.conditions import some

DENIED = "CanaryDenied"  # the reason of a proof, and the cause that seed/admission/denial.py gives
TOO_OFTEN = "TooManyRequests"  # ... and the one that it gives before it looks at what is asked
IN_NAMESPACES = "NamespacesEnforced"
"""The condition of a UserCluster and of a Seed: what quotas limit in namespaces there is checked."""

WORST_FIRST = (
    "Uninstalled",
    "CanaryAdmitted",
    "APITakenOver",
    "WebhookContested",
    "WebhookMissing",
    "NotServing",
    "CertificateInvalid",
    "UsageNotAdmitted",
)


class Proof(msgspec.Struct, frozen=True):
    """What the last canary showed, with a condition's reason and message. `enforced` is None where it was nothing."""

    enforced: bool | None
    reason: str
    message: str = ""


def webhook_serving(clusters: Mapping[str, Proof | None], of_seed: Mapping[str, Proof] = MappingProxyType({})) -> Proof:
    """`clusters` by key; None for one of which the present leader has seen nothing yet. `of_seed`: what the seed's own
    API server is asked about beside Machines. If that is not proven, the quotas that limit it say so."""
    known = {key: proof for key, proof in clusters.items() if proof is not None}
    failed = {key: _badness(proof) for key, proof in known.items() if proof.enforced is False}
    wrong = [proof for _, proof in sorted(of_seed.items()) if proof.enforced is False]
    if failed or wrong:
        worst = sorted(failed, key=lambda key: (failed[key], key))
        first = min((*(known[key] for key in worst), *wrong), key=_badness)
        texts = [
            f"{some(worst)}: Machines are not checked there, or cannot be created; see the condition Enforced of the "
            "UserCluster, or for other clusters what seedquota-seed logs of its canary"
        ]
        return Proof(False, first.reason, "; ".join([*texts[: len(failed)], *(proof.message for proof in wrong)]))
    if not clusters:
        return Proof(True, "NoUserClusters", "there is no user cluster whose Machines could be checked")
    unproven = sorted(key for key in clusters if key not in known or not known[key].enforced)
    if len(unproven) == len(clusters):
        return Proof(None, "NotProven", f"no dry run has been refused yet in {some(unproven)}")
    return Proof(True, DENIED, f"not proven in {some(unproven)}" if unproven else "dry runs are refused everywhere")


def unseen(clusters: Mapping[str, Proof | None]) -> bool:
    return any(proof is None for proof in clusters.values())


def _badness(proof: Proof) -> int:
    return WORST_FIRST.index(proof.reason) if proof.reason in WORST_FIRST else len(WORST_FIRST)
