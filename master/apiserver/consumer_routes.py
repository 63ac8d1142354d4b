"""The routes that say who uses a quota. The seeds are asked."""

from __future__ import annotations

from master.apiserver import cluster_lists, namespace_lists
from master.apiserver.route import MAX_LIMIT, NAME, Parameter, Route

_NAMESPACES = Parameter(
    "limit", "Namespaces in one answer", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": 100}
)
_AFTER = Parameter(
    "continue",
    "From the Link of the answer before",
    {"type": "string", "pattern": f"^{namespace_lists.POSITION}$"},
)

CONSUMERS: tuple[Route, ...] = (
    Route(
        "GET",
        "/api/v2/quotas/{name}/namespaces",
        "list_quota_namespaces",
        "What each namespace uses of a quota, on all seeds",
        "In order of seeds, clusters and names. A page of at most `limit`, which may have fewer namespaces, or none. "
        "The header `Link` has the next page. The agents of the seeds count them, and are asked. What is being created "
        "is not part of it. `notAsked` has the seeds that could not be asked for this page: their namespaces are "
        "missing. `notCurrent` has clusters that cannot be reached now, or are not counted yet.",
        "Quotas",
        namespace_lists.QuotaNamespaces,
        query=(_NAMESPACES, _AFTER),
        problems=(403, 404),
        headers={"Link": "The next page, rel=next, if there is one"},
    ),
    Route(
        "GET",
        "/api/v2/quotas/{name}/clusters",
        "list_quota_clusters",
        "The user clusters whose Machines use most of a quota, on all seeds",
        "The largest first, by the limit of which they have most. The seeds are asked for what their UserClusters say. "
        "`rest` has what the quota uses beyond these: what is being created, Allocations, objects in namespaces, and "
        "clusters of Kubermatic and Cluster API.",
        "Quotas",
        cluster_lists.QuotaClusters,
        query=(
            Parameter(
                "limit",
                "User clusters in the answer",
                {"type": "integer", "minimum": 1, "maximum": cluster_lists.MOST, "default": 10},
            ),
            Parameter("seed", "Ask this seed alone", {"type": "string", "pattern": f"^{NAME.pattern}$"}),
        ),
        problems=(403, 404),
    ),
)
