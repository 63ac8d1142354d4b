"""How use is written beside a limit. Pure."""

from __future__ import annotations

from collections.abc import Collection

from common.quota import names, resources
from common.quota.resources import ResourceList


def usage_text(use: ResourceList, limits: ResourceList, uncounted: Collection[str] = ()) -> str:
    """A limit is written as people write it. Use that is no round amount is rounded up, with `~`."""
    return ", ".join(
        f"{name} {'?' if name in uncounted else resources.about(name, use.get(name, 0))}/"
        f"{resources.shown(name, limits[name])[0]}"
        for name in names.in_order(limits)
    )


def peak_text(use: ResourceList, limits: ResourceList) -> str:
    """The resource nearest to its limit. Percent are rounded down: 100% is full."""
    peak, most = "", -1
    for name in names.in_order(limits):
        used, limit = use.get(name, 0), limits[name]
        if limit == 0 and used > 0:
            return f"{name} over 0"
        percent = used * 100 // limit if limit else -1
        if percent > most:
            peak, most = f"{name} {percent}%", percent
    return peak
