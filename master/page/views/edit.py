"""Limits as a form has them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import UNSET

from common.quota import object_names, resources
from master.apiserver.serializers import Quota

_LIMIT = "limit."  # begins the names of fields that are limits
_NEW_NAME, _NEW_LIMIT = "new.name", "new.limit"
_GUARANTEED, _ASKS_GUARANTEED = "guaranteed.", "guarantees"  # begins the names of others, and says that they are there


_LOCAL_TIME = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?")


class Raise(NamedTuple):
    """As the form has it."""

    amounts: dict[str, str | int]
    until: str
    reason: str

    @property
    def time(self) -> str:
        """Browsers send a time without seconds and zone; the form says that it is UTC."""
        if not _LOCAL_TIME.fullmatch(self.until):
            return self.until
        return f"{self.until}Z" if self.until.count(":") == 2 else f"{self.until}:00Z"


def new_raise(form: Mapping[str, str]) -> Raise:
    """All empty: none is asked for."""
    return Raise(wanted(form), form.get("until", "").strip(), form.get("reason", "").strip())


def guaranteed(form: Mapping[str, str]) -> dict[str, str | int] | None:
    """As `wanted`; None: the form does not ask for it."""
    if _ASKS_GUARANTEED not in form:
        return None
    return {
        name.removeprefix(_GUARANTEED): value.strip()
        for name, value in form.items()
        if name.startswith(_GUARANTEED) and value.strip()
    }


def guaranteeable(quota: Quota) -> list[str]:
    """The limits of which a part can be guaranteed: not those of a part of a project, nor of objects in namespaces."""
    of_a_part = quota.subject_clusters is not UNSET or quota.subject_seeds is not UNSET
    if quota.subject_kind != "project" or of_a_part:
        return []
    inside = object_names.of_objects(resources.parse(quota.quota))
    return [name for name in quota.quota if name not in inside]


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
