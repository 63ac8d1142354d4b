"""What is wrong, from the objects of the master and of a seed, each with its cure. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec

from cli.doctor import cures
from cli.seeds.on_master import Held
from common.api.conditions import NAMED, more
from common.api.types import Condition, Seed, UserCluster
from master.cache.objects import MasterQuota

Place = Literal["", "in the master's cluster", "added", "by a kubeconfig of its own"]
"""How the master reaches a seed. `added`: by `seedquota seed add`. Empty: its Secret cannot be read."""

_GOOD_IF_FALSE = frozenset({"Exceeded", "ResourceNotCounted"})
_IGNORED = frozenset({"NearLimit", "Overridden"})
_NOT_PROVEN = ("not proven", "it is not known which cluster")


class Finding(msgspec.Struct, frozen=True):
    """`condition` is empty where no condition says it, `seed` where it is of the master."""

    kind: str
    names: list[str]
    condition: str
    reason: str
    message: str
    cure: str
    seed: str = ""

    def text(self) -> str:
        what = f"{self.condition} ({self.reason})" if self.condition else self.reason
        if self.names == [f"seed {self.seed}"]:
            return f"{what}: {self.message}"
        return f"{', '.join(self.names[:NAMED])}{more(self.names)}: {what}: {self.message}"


def bad(conditions: Sequence[Condition]) -> list[Condition]:
    """Those that ask for something. What only follows from another one is left out."""
    found = [each for each in conditions if each.type not in _IGNORED and _is_bad(each)]
    found = [each for each in found if each.reason != "NotConnected"] or found
    reasons = {each.reason for each in found if each.type != "Ready"} | {"Degraded"}
    return [each for each in found if each.type != "Ready" or each.reason not in reasons]


def _is_bad(found: Condition) -> bool:
    if found.type in _GOOD_IF_FALSE:
        return found.status == "True"
    return found.status != "True" or found.message.startswith(_NOT_PROVEN)


def of_quotas(quotas: Iterable[MasterQuota]) -> list[Finding]:
    """Those with the same trouble are one finding: one seed that is away makes all quotas stale."""
    found: list[Finding] = []
    for quota in quotas:
        found += _of(cures.QUOTA, f"seedquota/{quota.metadata.name}", quota.status.conditions)
    together: dict[tuple[str, str], Finding] = {}
    for each in found:
        known = together.setdefault((each.condition, each.reason), each)
        if known is not each:
            known.names.extend(each.names)
    return list(together.values())


def of_seeds(
    seeds: Sequence[Seed],
    held: Mapping[str, Mapping[str, Held]] | None,
    places: Mapping[str, Place],
    known: Collection[str],
) -> list[Finding]:
    """`held` is None where it cannot be read. `known`: the names of all Seeds. A seed that is lost is not asked for
    anything."""
    found: list[Finding] = []
    for seed in seeds:
        name, holds = f"seed {seed.metadata.name}", held_text(held, seed.metadata.name)
        if seed.spec.state == "Lost":
            if holds:
                message = f"it still {holds}, which is to be given to others"
                found.append(Finding(cures.SEED, [name], "", "Lost", message, cures.UNREPORTED))
            continue
        other = cures.OF_SEED[places.get(seed.metadata.name, "")]
        for each in _of(cures.SEED, name, seed.status.conditions, other):
            away = each.condition.startswith("Connected=") and holds
            found.append(msgspec.structs.replace(each, message=f"{each.message}; it {holds}") if away else each)
    found = [msgspec.structs.replace(each, seed=each.names[0].removeprefix("seed ")) for each in found]
    for gone in sorted((held or {}).keys() - set(known)):
        message = f"its Seed was deleted, and it {held_text(held, gone)}"
        found.append(Finding(cures.SEED, [f"seed {gone}"], "", "Gone", message, cures.HELD_BY_NOBODY))
    return found


def held_text(held: Mapping[str, Mapping[str, Held]] | None, seed: str) -> str:
    """Empty where it holds nothing."""
    by_quota = (held or {}).get(seed, {})
    names = sorted(by_quota)
    said = ", ".join(f"seedquota/{name} ({by_quota[name].text()})" for name in names[:NAMED])
    return f"holds {said}{more(names)}" if names else ""


def of_user_clusters(clusters: Iterable[UserCluster]) -> list[Finding]:
    found = []
    for each in clusters:
        other = cures.OF_OWN_MACHINES if each.spec.kubeconfig_secret_ref is None else {}
        found += _of(cures.USER_CLUSTER, f"usercluster {each.metadata.key}", each.status.conditions, other)
    return found


def _of(
    kind: str, name: str, conditions: Sequence[Condition], other: Mapping[str, str] = MappingProxyType({})
) -> list[Finding]:
    """`other`: cures that are other ones there, by reason."""
    if not conditions:
        return [Finding(kind, [name], "", "NotReported", "it has no status yet", cures.UNREPORTED)]
    return [
        Finding(
            kind,
            [name],
            f"{each.type}={each.status}",
            each.reason,
            each.message,
            other.get(each.reason) or cures.cure(kind, each.type, each.reason),
        )
        for each in bad(conditions)
    ]
