"""What is sent to a receiver next: the difference between what was sent to it and what lasts now. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from master.notifications.active import FULL, NEAR_LIMIT, Active
from master.notifications.objects import Form, Notified

MAX_NOTIFIED = 200  # of what lasts that a status keeps; what is beyond is left out
MAX_TOLD = 10  # in one message
_AT_ONCE: dict[Form, int] = {"slack": MAX_TOLD, "alertmanager": MAX_TOLD, "cloudevents": 1}


class Next(msgspec.Struct, frozen=True, kw_only=True):
    """A message with what has begun and, for forms that say so, what has ended. Both are empty if nothing is to be
    told. `notified`: what is recorded when it was delivered. `more`: something is left for another message."""

    begun: Sequence[Active]
    ended: Sequence[Notified]
    notified: list[Notified]
    more: bool
    left_out: int

    @property
    def empty(self) -> bool:
        return not self.begun and not self.ended


def next_message(form: Form, notified: Sequence[Notified], lasting: Iterable[Active]) -> Next:
    """`lasting`: what lasts now of what the receiver wants to know."""
    known = {_key(each): each for each in notified}
    now = {each.key: each for each in lasting}
    kept = [each for key, each in known.items() if key in now]
    over = [each for key, each in known.items() if key not in now]
    fresh = sorted((each for key, each in now.items() if key not in known), key=lambda each: each.key)
    room = max(MAX_NOTIFIED - len(kept), 0)
    new, left_out = fresh[:room], max(len(fresh) - room, 0)
    full = {each.quota for each in new if each.event == FULL}
    told = [each for each in new if each.event != NEAR_LIMIT or each.quota not in full]
    most = _AT_ONCE[form]
    begun = told[:most]
    ended = over[: most - len(begun)] if form == "alertmanager" else []
    rest = told[most:]
    waiting = {each.key for each in rest}
    return Next(
        begun=begun,
        ended=ended,
        notified=[
            *kept,
            *(_record(each) for each in new if each.key not in waiting),
            *(over[len(ended) :] if form == "alertmanager" else ()),
        ],
        more=bool(rest) or (form == "alertmanager" and len(over) > len(ended)),
        left_out=left_out,
    )


def message_id(uid: str, deliveries: int, said: Next) -> str:
    """The same for each try to deliver one message, also by the next leader, and another for each other message."""
    about = [*(each.key for each in said.begun), *(("", *_key(each)) for each in said.ended)]
    return hashlib.sha256(f"{uid} {deliveries} {about}".encode()).hexdigest()[:32]


def _key(told: Notified) -> tuple[str, str, str]:
    return told.quota, told.event, told.mark


def _record(begun: Active) -> Notified:
    return Notified(quota=begun.quota, subject=begun.subject, event=begun.event, mark=begun.mark, since=begun.since)
