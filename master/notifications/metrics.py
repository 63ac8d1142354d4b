"""What became of messages. Declared at import: the registry is one."""

from __future__ import annotations

from prometheus_client import Counter

DELIVERIES = Counter(
    "seedquota_notifications_total",
    "Messages to receivers of QuotaNotifications, by form and result. One that failed is tried again.",
    ["form", "result"],
)
LEFT_OUT = Counter(
    "seedquota_notifications_left_out_total",
    "Of what lasts at quotas, what was not told because one QuotaNotification tells of 200 at most.",
)
