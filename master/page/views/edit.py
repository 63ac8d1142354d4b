"""Limits as a form has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_LIMIT = "limit."  # begins the names of fields that are limits
_NEW_NAME, _NEW_LIMIT = "new.name", "new.limit"


def wanted(form: Mapping[str, str]) -> dict[str, str | int]:
    """One that was emptied is removed."""
    found: dict[str, str | int] = {
        name.removeprefix(_LIMIT): value.strip()
        for name, value in form.items()
        if name.startswith(_LIMIT) and value.strip()
    }
    name, limit = form.get(_NEW_NAME, "").strip(), form.get(_NEW_LIMIT, "").strip()
    if name and limit:
        found[name] = limit
    return found
