"""What the condition and the columns of a Project or an Organization say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from common.api.conditions import condition, some
from common.api.types import Condition, ResourceQuotaSpec
from common.quota import resources
from common.quota.use_text import usage_text
from master.cache.objects import AllocatedTypes, QuotaStatus
from master.quotas.countable import NOTHING_ALLOCATED, in_use, of_objects, uncounted

MAX_USAGE = 16384  # characters of a summary


def ready(kind: str, without: Sequence[str], absent: Sequence[str]) -> Condition:
    """`without`: seeds that may lack the object. `absent`: those that never connected, so it is known to lack there."""
    if without:
        return condition("Ready", False, "SeedNotSynced", f"not known to be on {some(sorted(without))}")
    text = f"the {kind} is on all seeds"
    if absent:
        text += f" but {some(sorted(absent))}, which never connected"
    return condition("Ready", True, "AllSeeds", text)


def usage(
    quotas: Iterable[tuple[ResourceQuotaSpec, QuotaStatus]], allocated: AllocatedTypes = NOTHING_ALLOCATED
) -> str:
    """Of each resource the use under the limit that has least left, as far as any is refused. A limit that only warns
    is shown where no other is."""
    tightest: dict[str, tuple[tuple[bool, int], int | None, int]] = {}
    for spec, status in quotas:
        used, limits = resources.parse(status.global_usage), resources.parse(status.hard)
        told = len(used.keys() & of_objects(spec))  # the status has what is counted, also where that is nothing
        not_told = set(of_objects(spec)) - used.keys()
        unknown = {*uncounted(spec, in_use(allocated, used), clusters=told), *not_told}
        for name, limit in limits.items():
            amount = None if name in unknown else used.get(name, 0)
            found = (spec.enforcement == "warn", limit - (amount or 0)), amount, limit
            if name not in tightest or found[0] < tightest[name][0]:
                tightest[name] = found
    use = {name: amount for name, (_, amount, _) in tightest.items() if amount is not None}
    limits = {name: limit for name, (_, _, limit) in tightest.items()}
    return usage_text(use, limits, [name for name in limits if name not in use])[:MAX_USAGE]
