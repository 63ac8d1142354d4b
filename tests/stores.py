"""What a watch cache has, as if its reflector had listed it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.kube.controller.store import Store


def fill(store: Store[Any], objects: Mapping[str, Any]) -> None:
    """With these alone."""
    for key in list(store.keys()):
        store._remove(key)
    for key, found in objects.items():
        store._set(key, found)
