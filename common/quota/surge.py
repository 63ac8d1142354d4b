"""Surge: extra beyond a quota's limit that only rollouts may use, and the names under which accounts keep it. Pure.

Of each resource that `spec.surge` names there are two in an account, `cpu` and `surge.cpu`: granted, returned, reserved
and recalled alike, so that the promise holds for the surge as it does for the limit.
"""

from __future__ import annotations

from common.quota.resources import ResourceList

PREFIX = "surge."


def ceilings(limits: ResourceList, surge: ResourceList) -> ResourceList:
    """What accounts may not exceed."""
    return {**limits, **{PREFIX + name: amount for name, amount in surge.items()}} if surge else limits


def regular(amounts: ResourceList) -> ResourceList:
    return {name: amount for name, amount in amounts.items() if not name.startswith(PREFIX)}


def beyond(amounts: ResourceList) -> dict[str, int]:
    """What is surge, by the resources' own names."""
    return {name.removeprefix(PREFIX): amount for name, amount in amounts.items() if name.startswith(PREFIX)}


def lent(need: ResourceList, surge: ResourceList) -> dict[str, int]:
    """What a Machine needs, from the surge where there is any of a resource."""
    return {PREFIX + name if name in surge else name: amount for name, amount in need.items()}


def occupied(use: ResourceList, held: ResourceList) -> dict[str, int]:
    """The surge under what is used beyond what is held of the quota itself, as far as it is held and not lent.

    A loan that a ledger has lost is such use: without this rule its surge would be lent once more.
    """
    under = {}
    for name, amount in held.items():
        if name.startswith(PREFIX):
            quota = name.removeprefix(PREFIX)
            beyond = min(use.get(quota, 0) - held.get(quota, 0), amount - use.get(name, 0))
            if beyond > 0:
                under[name] = beyond
    return under


def withdrawn(need: ResourceList, ceilings: ResourceList) -> dict[str, int]:
    """What is needed of a surge that a quota does not have, or not any more: unlike a limit, none is no surge."""
    return {name: amount for name, amount in need.items() if name.startswith(PREFIX) and name not in ceilings}
