"""QuotaNotification as the master reads and writes it. The schema is in charts/crds."""

from __future__ import annotations

from typing import Literal

import msgspec

from common.api.labels import GROUP, VERSION
from common.api.types import Condition, Wire
from common.kube.client.meta import Object
from common.kube.client.resource import Resource

Form = Literal["slack", "alertmanager", "cloudevents"]


class SecretName(Wire):
    name: str


class NotificationSpec(Wire):
    """`projects`: only what their own quotas say; empty: of all of the organization, and its own."""

    events: list[str]
    form: Form
    secret_ref: SecretName
    projects: list[str] = []


class Notified(Wire):
    """What was sent to the receiver and has not ended. `mark` tells two of one kind apart, such as two ends."""

    quota: str
    event: str
    subject: str = ""
    mark: str = ""
    since: str = ""


class NotificationStatus(Wire):
    """`deliveries`: how many messages were delivered. `left_out`: how many of what lasts are beyond the bound."""

    observed_generation: int = 0
    deliveries: int = 0
    last_delivery_time: str = ""
    notified: list[Notified] = []
    left_out: int = 0
    conditions: list[Condition] = []


class QuotaNotification(Object, frozen=True, kw_only=True):
    spec: NotificationSpec
    status: NotificationStatus = msgspec.field(default_factory=NotificationStatus)


QUOTA_NOTIFICATIONS = Resource(GROUP, VERSION, "quotanotifications", "QuotaNotification", True, QuotaNotification)
