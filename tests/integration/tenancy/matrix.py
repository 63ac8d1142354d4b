"""What each kind of quota does with each resource: the cells that test_matrix.py tries, and that
docs/reference/quota-matrix.md shows. `python -m tests.integration.tenancy.matrix` prints the tables of that page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

PROJECT, ORGANIZATION, NAMESPACES, PROMISES = SUBJECTS = (
    "project",
    "organization",
    "namespaces",
    "ResourceQuotaAllocation",
)
MACHINES, OBJECTS, CLUSTERS, ALLOCATIONS = RESOURCES = ("Machines", "objects in namespaces", "clusters", "Allocations")
CREATE, CHANGE, DELETE, MOVE, LOWER, DEFAULT = OPERATIONS = (
    "create",
    "take more",
    "delete",
    "move",
    "lower the limit below use",
    "default",
)
BOTH = (PROJECT, ORGANIZATION)
COUNTED = (PROJECT, ORGANIZATION, NAMESPACES)

NAMES = {
    MACHINES: "`cpu`, `memory`, `storage`, `machines`, devices, and `instances.TYPE`",
    OBJECTS: "`pods`, `requests.cpu`, `count/...`, `sum....` and all other names of core quotas",
    CLUSTERS: "`clusters`",
    ALLOCATIONS: "types of the catalogue, such as `servers`",
}


@dataclass(frozen=True)
class Row:
    """One cell, or cells that are alike. `happens` is for the page.

    `says` is the answer where something is refused, `warns` what a warning has beside what is admitted, and `shows` the
    reason of a condition, and texts of it. In them, {quota} is the quota's name, {used}, {limit} and {lowered} are
    numbers of clusters, {namespace} is one of the subject's, and {name} each of `names`.

    `proven_by`: of some subjects, the test that proves it already, as FILE::NAME below tests/integration.
    `steps`: what test_matrix.py does, if that is not what it does for the operation.
    """

    subjects: tuple[str, ...]
    resource: str
    operations: tuple[str, ...]
    happens: str
    says: str = ""
    warns: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    proven_by: Mapping[str, str] = field(default_factory=dict)
    steps: str = ""

    @property
    def tried(self) -> tuple[str, ...]:
        """The subjects for which test_matrix.py does it."""
        return tuple(subject for subject in self.subjects if subject not in self.proven_by)

    def cells(self) -> Iterator[tuple[str, str, str]]:
        for subject in self.subjects:
            for operation in self.operations:
                yield subject, self.resource, operation


def exceeded(requested: str, used: str, limited: str = "") -> str:
    return f"exceeded quota: {{quota}}, requested: {requested}, used: {used}, limited: {limited or used};"


FULL = "admitted up to the limit, over all seeds. One more is refused"
GROWS = "admitted if what it takes more has room, otherwise refused"
FREES = "its share is free for others, on every seed. One beyond that is refused"
LOWERED = "allowed, with a warning. Nothing is removed, and nothing more is admitted until use has fallen"
GETS_DEFAULT = (
    "without a quota of its own, the subject gets the default quota of QuotaSettings, which limits as any other"
)
COUNTED_THERE = (
    "All that is in it is counted where it is now. If that is too much, nothing is removed, and no more admitted"
)
NO_QUOTA = "refused when the quota is made or changed"
STAYS = "refused: a project stays in its organization. One that has none may be given one, with all that it uses"
CLUSTER_STAYS = "a cluster's project cannot be changed; create a cluster in the other project and move its machines"
PROJECT_STAYS = (
    "a project's organization can be set once and not be changed or removed later; create a project in the other "
    "organization and move its clusters there"
)
UNKNOWN = "names a resource that core quotas do not know: {name}; known are pods, services, requests.cpu and others,"
OF_TENANTS = (
    "machines, storage, instances.TYPE, clusters, servers and gpus are for quotas of projects and organizations"
)

MACHINE, TWO_MACHINES = "cpu=1,machines=1,memory=1Gi,storage=1Gi", "cpu=2,machines=2,memory=2Gi,storage=2Gi"
POD, TWO_PODS, THREE_PODS = (f"count/pods={each},pods={each},requests.cpu={each}" for each in "123")

BY_LIMITS = (
    "installed/test_quotas.py::test_a_limit_below_use_removes_nothing_refuses_everything_and_can_be_raised_again"
)
BY_DEFAULTS = "installed/test_default_quotas.py::test_projects_that_existed_and_new_ones_get_it_and_it_limits"
BY_TYPES = "installed/test_machine_sizes.py::test_machines_are_limited_by_their_type"
BY_PODS = "installed/test_namespaces.py::test_what_exceeds_the_quota_is_refused_in_both_clusters_until_something_ends"
BY_RESIZES = (
    "test_namespaces_webhook.py::test_a_pod_that_is_resized_and_a_service_that_changes_its_type_are_asked_about"
)
BY_LABELS = "installed/test_tenancy.py::test_only_who_may_assign_projects_writes_the_label_and_only_in_shared_clusters"
BY_OWNERS = "installed/test_allocations.py::test_two_owners_at_once_never_promise_more_and_the_last_unit_can_be_used"
BY_CLUSTERS = "installed/test_clusters_quota.py::test_a_third_cluster_of_two_is_refused_on_every_seed_until_one_is_gone"
BY_SHARING = "installed/test_clusters_quota.py::test_an_organizations_projects_share_its_clusters"
BY_MOVING = "installed/test_clusters_quota.py::test_a_cluster_whose_label_moves_counts_where_it_went"
BY_ALLOCATIONS = "test_one_cluster.py::test_allocations_fill_the_quotas_of_organization_and_project_and_no_more"
BY_LOWERING = "test_one_cluster.py::test_a_limit_below_what_is_allocated_keeps_it_and_admits_no_more"

TABLE = (
    Row(BOTH, MACHINES, (CREATE,), FULL, says=exceeded(MACHINE, TWO_MACHINES)),
    Row(
        (PROJECT,),
        MACHINES,
        (CREATE,),
        "by machine type: the same",
        says=exceeded("instances.m5.large=1", "instances.m5.large=1"),
        proven_by={PROJECT: BY_TYPES},
    ),
    Row(BOTH, MACHINES, (CHANGE,), GROWS, says=exceeded("cpu=1", "cpu=2")),
    Row(BOTH, MACHINES, (DELETE,), FREES, says=exceeded(MACHINE, TWO_MACHINES)),
    Row(
        (PROJECT,), MACHINES, (MOVE,), "refused: a UserCluster stays in its project", says=CLUSTER_STAYS, steps="stays"
    ),
    Row((ORGANIZATION,), MACHINES, (MOVE,), STAYS, says=PROJECT_STAYS, steps="stays"),
    Row(
        BOTH,
        MACHINES,
        (LOWER,),
        LOWERED,
        says=exceeded(MACHINE, TWO_MACHINES, MACHINE),
        warns=("more is used than the limit: ", "cpu=2 of 1", "machines=2 of 1"),
        shows=("LimitLowered", "machines 2/1", "nothing is removed"),
        proven_by={PROJECT: BY_LIMITS},
    ),
    Row(BOTH, MACHINES, (DEFAULT,), GETS_DEFAULT, says=exceeded(MACHINE, MACHINE), proven_by={PROJECT: BY_DEFAULTS}),
    Row(
        (NAMESPACES, PROMISES),
        MACHINES,
        OPERATIONS,
        f"{NO_QUOTA}. `cpu` and `memory` are allowed, and are what pods request, as in core quotas",
        says=f"{UNKNOWN} and names with a slash such as count/deployments.apps; {OF_TENANTS}",
        names=("machines", "storage", "instances.m5.large"),
        steps="no_such_quota",
    ),
    Row(COUNTED, OBJECTS, (CREATE,), FULL, says=exceeded(POD, TWO_PODS), proven_by={NAMESPACES: BY_PODS}),
    Row(
        (PROMISES,),
        OBJECTS,
        (CREATE,),
        "a core ResourceQuota is admitted if all namespaces together promise at most the limit",
        says=exceeded(POD, TWO_PODS),
        proven_by={PROMISES: BY_OWNERS},
    ),
    Row(
        COUNTED,
        OBJECTS,
        (CHANGE,),
        GROWS,
        says=exceeded("requests.cpu=1", "requests.cpu=2"),
        proven_by={NAMESPACES: BY_RESIZES},
    ),
    Row(
        (PROMISES,),
        OBJECTS,
        (CHANGE,),
        "a core ResourceQuota may be raised if what it promises more has room",
        says=exceeded("pods=1", "pods=2"),
        proven_by={PROMISES: BY_OWNERS},
    ),
    Row(COUNTED, OBJECTS, (DELETE,), FREES, says=exceeded(POD, TWO_PODS), proven_by={NAMESPACES: BY_PODS}),
    Row(
        (PROMISES,),
        OBJECTS,
        (DELETE,),
        "what the ResourceQuota promised is free for others, once API servers admit no more by it",
        says=exceeded(POD, TWO_PODS),
        proven_by={PROMISES: BY_OWNERS},
    ),
    Row(
        BOTH,
        OBJECTS,
        (MOVE,),
        f"a namespace of a shared cluster moves by its label `seedquota.io/project`. {COUNTED_THERE}",
        says=exceeded(POD, THREE_PODS, TWO_PODS),
        shows=("UsageNotAdmitted", "pods 3/2"),
    ),
    Row(
        BOTH,
        OBJECTS,
        (MOVE,),
        "refused to users who may not `assign` these projects",
        says="label seedquota.io/project says which project pays for what is in this namespace",
        proven_by=dict.fromkeys(BOTH, BY_LABELS),
    ),
    Row(
        (NAMESPACES, PROMISES),
        OBJECTS,
        (MOVE,),
        f"a namespace moves by the labels that the selector picks. {COUNTED_THERE}",
        says=exceeded(POD, THREE_PODS, TWO_PODS),
        shows=("UsageNotAdmitted", "pods 3/2"),
    ),
    Row(
        COUNTED,
        OBJECTS,
        (LOWER,),
        LOWERED,
        says=exceeded(POD, TWO_PODS, POD),
        warns=("more is used than the limit: ", "pods=2 of 1", "requests.cpu=2 of 1"),
        shows=("LimitLowered", "pods 2/1", "nothing is removed"),
    ),
    Row(
        (PROMISES,),
        OBJECTS,
        (LOWER,),
        LOWERED,
        says=exceeded(POD, TWO_PODS, POD),
        warns=("more is promised than the limit: ", "pods=2 of 1", "requests.cpu=2 of 1"),
        shows=("LimitLowered", "pods 2/1", "nothing is removed"),
    ),
    Row(BOTH, OBJECTS, (DEFAULT,), GETS_DEFAULT, says=exceeded(POD, POD)),
    Row(
        COUNTED,
        OBJECTS,
        (DEFAULT,),
        "a container names what the quota limits, or a LimitRange of its namespace does, and that is counted",
        says="failed quota: {quota}: must specify requests.cpu for: c",
        steps="limit_range",
    ),
    Row(
        (NAMESPACES,),
        OBJECTS,
        (DEFAULT,),
        "refused: default quotas are for projects and organizations",
        says='unknown field "spec.defaults.namespaces"',
        steps="no_default_quota",
    ),
    Row(
        (PROMISES,),
        OBJECTS,
        (DEFAULT,),
        "a namespace without a ResourceQuota promises nothing, and is not limited: NamespacesLimited names it",
        shows=("NoResourceQuota", "{namespace}", "pods"),
        steps="names_who_has_none",
    ),
    Row(
        BOTH,
        CLUSTERS,
        (CREATE,),
        FULL,
        says=exceeded("clusters=1", "clusters=2"),
        proven_by={PROJECT: BY_CLUSTERS, ORGANIZATION: BY_SHARING},
    ),
    Row(BOTH, CLUSTERS, (CHANGE,), "admitted: a cluster is one, however large"),
    Row(
        BOTH,
        CLUSTERS,
        (DELETE,),
        FREES,
        says=exceeded("clusters=1", "clusters=2"),
        proven_by={PROJECT: BY_CLUSTERS, ORGANIZATION: BY_SHARING},
    ),
    Row(
        (PROJECT,), CLUSTERS, (MOVE,), "refused: a UserCluster stays in its project", says=CLUSTER_STAYS, steps="stays"
    ),
    Row((ORGANIZATION,), CLUSTERS, (MOVE,), STAYS, says=PROJECT_STAYS, steps="stays"),
    Row(
        (PROJECT,),
        CLUSTERS,
        (MOVE,),
        "a Cluster of Cluster API moves by its label, and is counted where it is now, even beyond the limit",
        says=exceeded("clusters=1", "clusters=2", "clusters=1"),
        proven_by={PROJECT: BY_MOVING},
    ),
    Row(
        BOTH,
        CLUSTERS,
        (LOWER,),
        LOWERED,
        says=exceeded("clusters=1", "clusters={used}", "clusters={lowered}"),
        warns=("more is used than the limit: ", "clusters={used} of {lowered}"),
        shows=("LimitLowered", "clusters {used}/{lowered}", "nothing is removed"),
    ),
    Row(BOTH, CLUSTERS, (DEFAULT,), GETS_DEFAULT, says=exceeded("clusters=1", "clusters={used}")),
    Row(
        (NAMESPACES, PROMISES),
        CLUSTERS,
        OPERATIONS,
        NO_QUOTA,
        says=f"{UNKNOWN} and names with a slash such as count/deployments.apps; {OF_TENANTS}",
        names=("clusters",),
        steps="no_such_quota",
    ),
    Row(
        BOTH,
        ALLOCATIONS,
        (CREATE,),
        FULL,
        says=exceeded("servers=1", "servers=2"),
        proven_by=dict.fromkeys(BOTH, BY_ALLOCATIONS),
    ),
    Row(
        BOTH,
        ALLOCATIONS,
        (CHANGE,),
        GROWS,
        says=exceeded("servers=1", "servers=2"),
        proven_by=dict.fromkeys(BOTH, BY_ALLOCATIONS),
    ),
    Row(
        BOTH,
        ALLOCATIONS,
        (DELETE,),
        FREES,
        says=exceeded("servers=1", "servers=2"),
        proven_by=dict.fromkeys(BOTH, BY_ALLOCATIONS),
    ),
    Row(
        (PROJECT,),
        ALLOCATIONS,
        (MOVE,),
        "refused: an Allocation stays in its project",
        says="an allocation's project cannot be changed; create an allocation in the other project",
        steps="stays",
    ),
    Row(
        (ORGANIZATION,),
        ALLOCATIONS,
        (MOVE,),
        "refused: an Allocation stays in its organization",
        says="an allocation's organization cannot be changed; create an allocation in the other organization",
        steps="stays",
    ),
    Row(
        BOTH,
        ALLOCATIONS,
        (LOWER,),
        f"{LOWERED}. Over HTTP it is refused",
        says=exceeded("servers=1", "servers=2", "servers=1"),
        warns=("more is used than the limit: ", "servers=2 of 1"),
        shows=("LimitLowered", "servers 2/1", "nothing is removed"),
        proven_by={ORGANIZATION: BY_LOWERING},
    ),
    Row(BOTH, ALLOCATIONS, (DEFAULT,), GETS_DEFAULT, says=exceeded("servers=1", "servers=1")),
    Row(
        (NAMESPACES, PROMISES),
        ALLOCATIONS,
        OPERATIONS,
        NO_QUOTA,
        says=f"{UNKNOWN} and names with a slash such as count/deployments.apps; {OF_TENANTS}",
        names=("servers", "gpus"),
        steps="no_such_quota",
    ),
)

_SHOWN = {
    "{quota}": "QUOTA",
    "{namespace}": "NAMESPACE",
    "{name}": "NAME",
    "{used}": "3",
    "{limit}": "3",
    "{lowered}": "2",
}


def tables() -> str:
    """One table for each resource, in Markdown."""
    lines: list[str] = []
    for resource in RESOURCES:
        lines += [f"## {resource[0].upper()}{resource[1:]}", "", f"Names: {NAMES[resource]}.", ""]
        lines += ["| what is done | quota of | what happens | messages |", "|---|---|---|---|"]
        for row in TABLE:
            if row.resource == resource:
                done = "any of these" if row.operations == OPERATIONS else ", ".join(row.operations)
                subjects = ", ".join(row.subjects)
                lines.append(f"| {done} | {subjects} | {row.happens} | {_messages(row)} |")
        lines.append("")
    return "\n".join(lines)


def _messages(row: Row) -> str:
    warning = row.warns[0] + ", ".join(row.warns[1:]) if row.warns else ""
    return "<br>".join(f"`{_shown(text)}`" for text in (row.says, warning, ": ".join(row.shows[:2])) if text)


def _shown(text: str) -> str:
    for place, word in _SHOWN.items():
        text = text.replace(place, word)
    return text


if __name__ == "__main__":
    print(tables())
