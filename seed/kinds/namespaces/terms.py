"""What a quota counts of the objects in namespaces. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from common.quota import object_names
from seed.kinds.namespaces.evaluators.namespaced import Terms
from seed.model.quota import NAMESPACES, Quota


def terms_of(quota: Quota, granted: Iterable[str] = ()) -> Terms:
    """`granted`: also what the quota limited once. That is held still, and may be limited again at any moment."""
    also = granted if quota.kind == NAMESPACES else object_names.of_objects(granted)
    limited = object_names.beside(quota.of_objects, also)
    return Terms(limited=limited, scopes=quota.scopes, promises=quota.promises)
