"""The status of a UserCluster: what its Machines use, and its conditions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from common.api import conditions
from common.api.convert import wire_quantities
from common.api.types import Condition, UnadmittedMachines, UserCluster
from common.quota import names, resources
from seed.usage.unadmitted import MAX_RECORDED, Unadmitted

MAX_SHOWN = 64  # resources in a status
MAX_SUMMED = 16  # ... and in the columns of kubectl get


def desired_status(
    cluster: UserCluster,
    counted: tuple[int, resources.ResourceList] | None,
    wanted: list[Condition],
    now: str,
    unadmitted: UnadmittedMachines | None = None,
) -> dict[str, object] | None:
    """None if the object has it already. `counted`: how many Machines, and as much of their use as is shown; None while
    no complete list was read, then what the status had stays, as it does with `unadmitted`."""
    before = cluster.status
    unadmitted = unadmitted or before.unadmitted
    machines, usage = before.machines, before.resource_usage
    if counted is not None:
        machines, usage = counted[0], wire_quantities(counted[1])
    changed = counted is not None and (
        (machines, usage) != (before.machines, before.resource_usage) or not before.last_count_time
    )
    found = conditions.transition(before.conditions, wanted, now)
    if not changed and found == before.conditions and unadmitted == before.unadmitted:
        return None
    status: dict[str, object] = {"observedGeneration": cluster.metadata.generation, "conditions": found}
    if counted is not None or before.last_count_time:
        status["machines"], status["resourceUsage"] = machines, usage
        status["lastCountTime"] = now if changed else before.last_count_time
        status["summary"] = {"usage": _summary(resources.parse(usage))}
    if unadmitted.machines:
        status["unadmitted"] = {"machines": unadmitted.machines, "uids": unadmitted.uids}
    return status


def recorded(unadmitted: Unadmitted) -> UnadmittedMachines:
    """As many uids as a status takes, those that were found first: the next leader knows those again."""
    return UnadmittedMachines(machines=len(unadmitted), uids=sorted(islice(unadmitted.found, MAX_RECORDED)))


def shown(used: resources.ResourceList, limited: Sequence[str]) -> resources.ResourceList:
    """As much of it as a status takes, what matters first."""
    kept = names.kept(used, limited, names.FURTHER)
    first = sorted(kept, key=lambda name: (name not in names.BASE, name not in limited))[:MAX_SHOWN]
    return resources.only(kept, first)


def _summary(used: resources.ResourceList) -> str:
    """What fits a column: `cpu 24, memory 96Gi`."""
    few = dict(islice(used.items(), MAX_SUMMED))
    return ", ".join(f"{name} {amount}" for name, amount in sorted(resources.render(few).items()) if name != "machines")
