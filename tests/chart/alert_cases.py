"""What causes each alert: series while all is well, and while it should fire."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from devcluster.charts import MASTER, SEED

LATER = 4e9  # in Unix time


@dataclass(frozen=True)
class Growing:
    """A counter, by so much a minute."""

    by: float


Value = float | Growing | None
"""None: there is no such series."""


@dataclass(frozen=True)
class Case:
    """`series`: the values of each while all is well, and while something is wrong. `labels`: what the alert names."""

    chart: str
    alert: str
    series: Mapping[str, tuple[Value, Value]]
    labels: Mapping[str, str] = field(default_factory=dict)


RUNS: dict[str, tuple[Value, Value]] = {"up": (1, 1), "seedquota_leader": (1, 1)}
OF_CLUSTER = {"user_cluster": "alpha/c1"}
CLUSTER = 'user_cluster="alpha/c1"'
CONDITION = f'seedquota_user_cluster_condition{{{CLUSTER}, condition="Ready", status="True", reason="Ready"}}'


def condition(kind: str, status: str, reason: str) -> str:
    return f'seedquota_quota_condition{{quota="q", condition="{kind}", status="{status}", reason="{reason}"}}'


def of_quota(alert: str, kind: str, status: str, reason: str, **more: str) -> Case:
    return Case(MASTER, alert, {condition(kind, status, reason): (None, 1)}, {"quota": "q", "reason": reason, **more})


def of_both(chart: str) -> list[Case]:
    ending = 'seedquota_certificate_expiry_timestamp_seconds{certificate="a"}'
    return [
        Case(chart, "SeedQuotaReplicaNotScraped", {"up": (1, 0)}, {"job": f"{chart}-metrics", "pod": "a"}),
        Case(chart, f"SeedQuota{chart.removeprefix('seedquota-').title()}WithoutLeader", {"seedquota_leader": (1, 0)}),
        Case(chart, "SeedQuotaCertificateExpiring", {ending: (LATER, 0)}, {"certificate": "a"}),
        Case(
            chart,
            "SeedQuotaUnexpectedErrors",
            {'seedquota_unexpected_errors_total{part="a"}': (Growing(0), Growing(2))},
            {"job": f"{chart}-metrics", "part": "a"},
        ),
        Case(
            chart,
            "SeedQuotaReconciledTooOften",
            {'seedquota_workqueue_throttled_total{controller="a"}': (Growing(6), Growing(600))},
            {"job": f"{chart}-metrics", "controller": "a"},
        ),
    ]


def slow(path: str) -> dict[str, tuple[Value, Value]]:
    """All answers take less than 0.5 s, or between 2 s and 2.5 s."""
    name = "seedquota_admission_duration_seconds_bucket"
    return {
        f'{name}{{path="{path}", le="0.5"}}': (Growing(60), Growing(0)),
        f'{name}{{path="{path}", le="2"}}': (Growing(60), Growing(0)),
        f'{name}{{path="{path}", le="2.5"}}': (Growing(60), Growing(60)),
        f'{name}{{path="{path}", le="+Inf"}}': (Growing(60), Growing(60)),
    }


GONE = {
    MASTER: Case(MASTER, "SeedQuotaMasterGone", {"up": (1, None), "seedquota_leader": (1, None)}),
    SEED: Case(SEED, "SeedQuotaSeedGone", {"up": (1, None), "seedquota_leader": (1, None)}),
}
CASES = [
    *GONE.values(),
    *of_both(MASTER),
    *of_both(SEED),
    Case(
        MASTER,
        "SeedQuotaLimitExceeded",
        {
            'seedquota_overshoot{quota="q", resource="cpu", unit="cores"}': (0, 2),
            condition("Exceeded", "True", "UsageNotAdmitted"): (None, 1),
        },
        {"quota": "q", "resource": "cpu"},
    ),
    of_quota("SeedQuotaNotEnforced", "Enforced", "False", "AccountFenced"),
    of_quota("SeedQuotaStateUnknown", "Ready", "Unknown", "Learning", condition="Ready"),
    of_quota("SeedQuotaUsageNotCurrent", "UsageCurrent", "False", "AgentSilent"),
    of_quota("SeedQuotaNearLimit", "NearLimit", "True", "AboveWarnPercent"),
    Case(MASTER, "SeedQuotaSeedUnreachable", {'seedquota_seed_connected{seed="us-1"}': (1, 0)}, {"seed": "us-1"}),
    Case(
        MASTER,
        "SeedQuotaSeedTokenExpiring",
        {'seedquota_seed_token_expiry_timestamp_seconds{seed="us-1"}': (LATER, 0)},
        {"seed": "us-1"},
    ),
    Case(
        SEED,
        "SeedQuotaWebhookNotServing",
        {f"seedquota_canary_success{{{CLUSTER}}}": (1, 0), CONDITION: (1, 1)},
        OF_CLUSTER,
    ),
    Case(
        SEED,
        "SeedQuotaWebhookNotProven",
        {f"seedquota_canary_success{{{CLUSTER}}}": (1, None), CONDITION: (1, 1)},
        OF_CLUSTER,
    ),
    Case(SEED, "SeedQuotaWebhookSlow", slow("recall"), {"path": "recall"}),
    Case(SEED, "SeedQuotaAccountsFenced", {"seedquota_accounts_fenced": (0, 2)}),
    *(
        Case(
            SEED,
            "SeedQuotaAccountsWaiting",
            {f'seedquota_account_waiting_seconds{{reason="{reason}"}}': (well, sick)},
            {"reason": reason},
        )
        for reason, well, sick in (("MasterAnswer", 59, 61), ("InFlightWindow", 179, 181))
    ),
    Case(
        SEED,
        "SeedQuotaUnavailable",
        {'seedquota_refusals_total{quota="q", reason="QuotaUnavailable"}': (Growing(0), Growing(3))},
        {"quota": "q"},
    ),
    Case(
        SEED,
        "SeedQuotaMachinesUnsized",
        {f'seedquota_machines_unsized{{{CLUSTER}, reason="UnknownFlavour"}}': (0, 2)},
        {**OF_CLUSTER, "reason": "UnknownFlavour"},
    ),
    Case(SEED, "SeedQuotaMachineAPITakenOver", {f"seedquota_machine_api_taken_over{{{CLUSTER}}}": (0, 1)}, OF_CLUSTER),
    Case(
        SEED,
        "SeedQuotaWebhookContested",
        {f"seedquota_webhook_restored_total{{{CLUSTER}}}": (Growing(0), Growing(60))},
        OF_CLUSTER,
    ),
    Case(
        SEED,
        "SeedQuotaUnadmittedMachines",
        {f"seedquota_machines_unadmitted{{{CLUSTER}}}": (Growing(0), Growing(6))},
        OF_CLUSTER,
    ),
]


def with_labels(series: str, labels: Mapping[str, str]) -> str:
    """The series of a target that has these labels."""
    name, own = re.fullmatch(r"(\w+)(?:\{(.*)\})?", series).groups()  # type: ignore[union-attr]
    more = [f'{key}="{value}"' for key, value in labels.items()]
    return f"{name}{{{', '.join([own, *more] if own else more)}}}"
