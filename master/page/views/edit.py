"""An edit of limits: what was written into the form, and what it would mean. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from common.quota import resources
from common.quota.names import in_order
from common.quota.quantity import QuantityError
from common.quota.resources import ResourceList
from master.page.views import amounts
from master.page.views.amounts import Amount

_LIMIT = "limit."  # begins the names of fields that are limits
_NEW_NAME, _NEW_LIMIT = "new.name", "new.limit"


class Change(NamedTuple):
    """`before`, `after`: None: there is no limit. `used`: None: it is not known. `over`: by how much the use is above
    the new limit: nothing is removed, and nothing more is admitted."""

    resource: str
    before: Amount | None
    after: Amount | None
    used: Amount | None
    over: Amount | None


def wanted(form: Mapping[str, str]) -> dict[str, str | int]:
    """The limits of the form. One that was emptied is removed."""
    found: dict[str, str | int] = {
        name.removeprefix(_LIMIT): value.strip()
        for name, value in form.items()
        if name.startswith(_LIMIT) and value.strip()
    }
    name, limit = form.get(_NEW_NAME, "").strip(), form.get(_NEW_LIMIT, "").strip()
    if name and limit:
        found[name] = limit
    return found


def changes(before: Mapping[str, str | int], after: Mapping[str, str | int], used: ResourceList) -> Sequence[Change]:
    """Of what changes. Raises QuantityError, which names the resource."""
    old, new = resources.parse(before), resources.parse(after)
    if wrong := next((name for name, limit in new.items() if limit < 0), None):
        raise QuantityError(f"{wrong}: a limit cannot be negative")
    return [
        _change(name, old.get(name), new.get(name), used.get(name))
        for name in in_order({**old, **new})
        if old.get(name) != new.get(name)
    ]


def _change(name: str, before: int | None, after: int | None, used: int | None) -> Change:
    over = used - after if used is not None and after is not None and used > after else None
    return Change(
        name, *(amounts.amount(name, each) if each is not None else None for each in (before, after, used, over))
    )
