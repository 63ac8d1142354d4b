"""Messages as receivers understand them: Slack's incoming webhooks, Alertmanager's webhook_config, CloudEvents. Pure.

Sources: https://docs.slack.dev/messaging/formatting-message-text (three characters are escaped),
https://prometheus.io/docs/alerting/latest/configuration/#webhook_config (version 4),
https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md (structured mode).
"""

from __future__ import annotations

import hashlib

import msgspec

from master.notifications.active import Active
from master.notifications.objects import Form, Notified
from master.notifications.plan import Next

_NEVER = "0001-01-01T00:00:00Z"  # endsAt of what lasts
_JSON = "application/json"


class Message(msgspec.Struct, frozen=True):
    content_type: str
    body: bytes


def message(form: Form, said: Next, *, identity: str, name: str, now: str) -> Message:
    """`identity`: of the message. `name`: namespace/name of the QuotaNotification. `now`: RFC 3339."""
    if form == "slack":
        return _encoded(_JSON, {"text": "\n".join(_line(each) for each in said.begun)})
    if form == "alertmanager":
        return _encoded(_JSON, _alerts(said, name, now))
    (begun,) = said.begun
    return _encoded("application/cloudevents+json", _cloud_event(begun, identity))


def _encoded(content_type: str, body: object) -> Message:
    return Message(content_type, msgspec.json.encode(body))


def _line(begun: Active) -> str:
    """No name or message can mention a channel or make a link."""
    text = f"seedquota/{begun.quota} ({begun.subject}): {begun.event}: {begun.message}"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _alerts(said: Next, name: str, now: str) -> dict[str, object]:
    alerts = [
        *(_alert(each, status="firing", text=each.message, ends=_NEVER) for each in said.begun),
        *(_alert(each, status="resolved", text="", ends=now) for each in said.ended),
    ]
    return {
        "version": "4",
        "groupKey": f"{{}}:{{notification={msgspec.json.encode(name).decode()}}}",
        "truncatedAlerts": 0,
        "status": "firing" if said.begun else "resolved",
        "receiver": name,
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "",
        "alerts": alerts,
    }


def _alert(told: Active | Notified, *, status: str, text: str, ends: str) -> dict[str, object]:
    """An alert that is resolved has the labels of the one that fired."""
    labels = {"alertname": told.event, "quota": told.quota, "subject": told.subject}
    labels |= {"mark": told.mark} if told.mark else {}
    return {
        "status": status,
        "labels": labels,
        "annotations": {"summary": text} if text else {},
        "startsAt": told.since or _NEVER,
        "endsAt": ends,
        "generatorURL": "",
        "fingerprint": hashlib.sha256(msgspec.json.encode(sorted(labels.items()))).hexdigest()[:16],
    }


def _cloud_event(begun: Active, identity: str) -> dict[str, object]:
    event: dict[str, object] = {
        "specversion": "1.0",
        "id": identity,
        "source": f"/apis/seedquota.io/v1alpha1/resourcequotas/{begun.quota}",
        "type": f"io.seedquota.{begun.event.lower()}.v1",
        "subject": begun.subject,
        "datacontenttype": _JSON,
        "data": {"quota": begun.quota, "subject": begun.subject, "event": begun.event, "message": begun.message},
    }
    return {**event, "time": begun.since} if begun.since else event
