"""The routes, and what the OpenAPI document says of them. Pure."""

from __future__ import annotations

from typing import Any

from master.apiserver import allocation_types as allocations
from master.apiserver import capacity, decisions, previews
from master.apiserver import serializers as types
from master.apiserver.consumer_routes import CONSUMERS
from master.apiserver.override_types import OverridesUpdate
from master.apiserver.platform_routes import PLATFORM
from master.apiserver.preview_routes import PREVIEWS_OF_SEEDS
from master.apiserver.route import MAX_LIMIT, NAME, Parameter, Route

TAGS = {
    "Documentation": "What this API is. No token is needed.",
    "Organizations": "What an organization may use, as whole numbers.",
    "Allocations": "What services use for things of a project. The sum counts in the quotas of the project and of its "
    "organization.",
    "Projects": "The quota of a project, as Kubernetes quantities.",
    "Previews": "What would fit. Nothing is reserved and nothing is written.",
    "Quotas": "Quotas by their names, as kubectl has them.",
    "Events": "What changes, as it changes.",
    "Platform": "Default quotas and seeds. What a change would do is told before it is made.",
}

_ETAG = {"ETag": "The version, for If-Match: it compares the limits, and not the use."}
_KIND = Parameter(
    "subjectKind", "Only quotas of this kind of subject", {"enum": ["project", "organization", "namespaces"]}
)
_SUBJECT = Parameter("subjectName", "Only quotas of the subject of this name", {"type": "string"})
_CHANGED = {"ETag": "The version, for If-Match."}
_LIST = {"Link": "The next page, rel=next, if there is one"}
_PROJECT = Parameter("projectID", "Only allocations of this project", {"type": "string"})
_OF_KIND = Parameter("kind", "Only allocations for this kind of thing", {"type": "string"})
_OF_ID = Parameter("id", "Only allocations for the thing of this ID", {"type": "string"})
_MOST = Parameter(
    "limit",
    "Allocations in one answer",
    {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": MAX_LIMIT},
)
_LIMIT = Parameter(
    "limit", "Quotas in one answer", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": 100}
)
_CONTINUE = Parameter(
    "continue", "From the Link of the answer before", {"type": "string", "pattern": f"^{NAME.pattern}$"}
)

_ALLOCATION = "/api/v1/organizations/{organization}/projects/{project}/allocations/{id}"

ROUTES = (
    Route(
        "GET",
        "/openapi.json",
        "openapi",
        "This document",
        "The OpenAPI document of this replica's version. Clients can be generated from it.",
        "Documentation",
        dict[str, Any],
        public=True,
    ),
    Route(
        "GET",
        "/docs",
        "docs",
        "This document as a page for people",
        "Plain HTML without scripts.",
        "Documentation",
        str,
        public=True,
        media_type="text/html",
    ),
    Route(
        "GET",
        "/api/v1/resources",
        "list_resource_types",
        "The types of resources of the catalogue, with names and units for people",
        "What QuotaSettings say of each. Quotas may also limit types that are not in the catalogue.",
        "Organizations",
        list[types.ResourceType],
    ),
    Route(
        "GET",
        "/api/v1/organizations/{organization}/quotas",
        "get_organization_quotas",
        "What an organization may use, what of it is used, and what is free",
        "Limits and free amounts are rounded down, used amounts up. Where several quotas limit the organization, the "
        "lowest limit of each type is shown.",
        "Organizations",
        capacity.OrganizationQuotas,
        problems=(404,),
        headers=_ETAG,
    ),
    Route(
        "PUT",
        "/api/v1/organizations/{organization}/quotas",
        "put_organization_quotas",
        "Set what an organization may use",
        "Replaces the limits: a type that is missing becomes unlimited. A limit cannot be lowered below what is used "
        "(`capacity_below_allocated`).",
        "Organizations",
        capacity.OrganizationQuotas,
        body=capacity.OrganizationQuotasUpdate,
        problems=(403, 404, 409),
        conditional=True,
        headers=_ETAG,
    ),
    Route(
        "GET",
        "/api/v1/organizations/{organization}/allocations",
        "list_allocations",
        "Allocations of an organization, by ID: of the projects that the user may see",
        "A page of at most 500. The header `Link` has the next page.",
        "Allocations",
        list[allocations.Allocation],
        query=(_PROJECT, _OF_KIND, _OF_ID, _MOST, _CONTINUE),
        problems=(403, 404),
        headers=_LIST,
    ),
    *(
        Route(
            "POST",
            path,
            handler,
            what,
            f"{where} The same request with the same `metadata.id` may be sent again: then the answer is 200, and "
            "nothing more is allocated. An array is created as a whole or not at all. What does not fit is refused "
            "(`quota_exceeded`).",
            "Allocations",
            allocations.Allocation | list[allocations.Allocation],
            201,
            allocations.Creates,
            problems=(403, 404, 409),
            headers={**_CHANGED, "Location": "The allocation, where one was asked for"},
            replayed=200,
        )
        for path, handler, what, where in (
            (
                "/api/v1/organizations/{organization}/allocations",
                "create_allocations",
                "Allocate, one or several, all or nothing; 200: all are there already",
                "`metadata.projectID` is required.",
            ),
            (
                "/api/v1/organizations/{organization}/projects/{project}/allocations",
                "create_project_allocations",
                "Allocate for a project, one or several, all or nothing; 200: all are there already",
                "The project is that of the path.",
            ),
        )
    ),
    Route(
        "GET",
        _ALLOCATION,
        "get_allocation",
        "One allocation",
        "It is read from the API server, so it is always current.",
        "Allocations",
        allocations.Allocation,
        problems=(403, 404),
        headers=_CHANGED,
    ),
    Route(
        "PUT",
        _ALLOCATION,
        "put_allocation",
        "Set the resources of an allocation",
        "Replaces the resources: a type that is missing is released. What is added must fit (`quota_exceeded`).",
        "Allocations",
        allocations.Allocation,
        body=allocations.AllocationUpdate,
        problems=(403, 404, 409),
        conditional=True,
        headers=_CHANGED,
    ),
    Route(
        "DELETE",
        _ALLOCATION,
        "delete_allocation",
        "Release an allocation",
        "What it held is free for others at once, or some seconds later.",
        "Allocations",
        None,
        204,
        problems=(403, 404, 409),
        conditional=True,
    ),
    Route(
        "GET",
        "/api/v2/projects/{project}/quota",
        "get_project_quota",
        "The quota of a project",
        "Where several quotas limit the project, `name` is empty and `quota` has the lowest limit of each resource.",
        "Projects",
        types.Quota,
        problems=(404,),
        headers=_ETAG,
    ),
    Route(
        "POST",
        "/api/v2/projects/{project}/quotacalculation",
        "calculate",
        "Whether something would fit into the quotas of a project and of its organization",
        "The status is 200 whether it fits or not. `calculatedQuota` is what would be used.",
        "Projects",
        previews.CalculationResult,
        body=previews.Calculation,
        problems=(404,),
        reads=True,
    ),
    Route(
        "POST",
        "/api/v1/fits",
        "fits",
        "Whether something would fit into the quotas of a project or an organization, or into one quota",
        "The status is 200 whether it fits or not. `replaces` is what exists now and would be replaced.",
        "Previews",
        previews.FitsResult,
        body=previews.FitsRequest,
        problems=(404,),
        reads=True,
    ),
    Route(
        "POST",
        "/api/v1/where",
        "where",
        "On which seeds how many more would fit",
        "`now` is the number with the capacity that the seed holds. `byRecall` includes what is free and what other "
        "seeds can return.",
        "Previews",
        previews.WhereResult,
        body=previews.WhereRequest,
        problems=(404,),
        reads=True,
    ),
    *PREVIEWS_OF_SEEDS,
    Route(
        "GET",
        "/api/v1/decisions/{decision}",
        "get_decision",
        "A decision of a seed",
        "The agents of the seeds keep decisions in memory, and are asked for it. `record` has the quotas that the "
        "caller may see. Without `record`, no seed that could be asked has it, and `notAsked` says why others were not "
        "asked.",
        "Previews",
        decisions.Decision,
        query=(Parameter("seed", "Ask this seed alone", {"type": "string", "pattern": f"^{NAME.pattern}$"}),),
        problems=(404,),
    ),
    Route(
        "GET",
        "/api/v1/refusals",
        "list_refusals",
        "What was refused in the last hour",
        "By a quota, or in a project: name one of both. It needs the right to see that. The agents of the seeds are "
        "asked for the decisions that they keep, without dry runs; at most 50 are shown.",
        "Previews",
        decisions.Refusals,
        query=(
            Parameter("quota", "By this quota", {"type": "string", "pattern": f"^{NAME.pattern}$"}),
            Parameter("project", "In this project", {"type": "string", "pattern": f"^{NAME.pattern}$"}),
            Parameter("seed", "Ask this seed alone", {"type": "string", "pattern": f"^{NAME.pattern}$"}),
        ),
        problems=(404, 422),
    ),
    Route(
        "GET",
        "/api/v2/quotas",
        "list_quotas",
        "Quotas, by name",
        "A page of at most `limit`. The header `Link` has the next page.",
        "Quotas",
        list[types.Quota],
        query=(_KIND, _SUBJECT, _LIMIT, _CONTINUE),
        problems=(403,),
        headers=_LIST,
    ),
    Route(
        "POST",
        "/api/v2/quotas",
        "create_quota",
        "Make a quota",
        "Without `name`, the name is made of the subject's. A quota of that name must not exist (`already_exists`).",
        "Quotas",
        types.Quota,
        201,
        types.QuotaCreate,
        problems=(403, 409),
        headers={**_ETAG, "Location": "The quota"},
    ),
    Route(
        "GET",
        "/api/v2/quotas/{name}",
        "get_quota",
        "One quota",
        "It may be some seconds behind a write that another replica has answered.",
        "Quotas",
        types.Quota,
        problems=(403, 404),
        headers=_ETAG,
    ),
    *CONSUMERS,
    Route(
        "PUT",
        "/api/v2/quotas/{name}",
        "put_quota",
        "Set the limits of a quota",
        "Replaces the limits. A limit may be lowered below what is used: then nothing more is admitted.",
        "Quotas",
        types.Quota,
        body=types.QuotaUpdate,
        problems=(403, 404, 409),
        conditional=True,
        headers=_ETAG,
    ),
    Route(
        "PUT",
        "/api/v2/quotas/{name}/overrides",
        "put_overrides",
        "Raise limits of a quota until a time",
        "Replaces the overrides; an empty list removes all. Of several, the largest amount of a resource counts. At "
        "the end of one the former limit is in force: nothing is removed.",
        "Quotas",
        types.Quota,
        body=OverridesUpdate,
        problems=(403, 404, 409),
        conditional=True,
        headers=_ETAG,
    ),
    Route(
        "DELETE",
        "/api/v2/quotas/{name}",
        "delete_quota",
        "Delete a quota",
        "Its subject is then limited by its other quotas, or by a default one.",
        "Quotas",
        None,
        204,
        problems=(403, 404, 409),
        conditional=True,
    ),
    Route(
        "GET",
        "/api/v1/events",
        "events",
        "Follow what changes, as server-sent events",
        "An event `change` has the names of objects that were made, changed or deleted: "
        '`{"changed": [{"resource": "resourcequotas", "name": "project-alpha"}], "more": false}`. It comes '
        "within half a second. With `project` or `organization`, it is the object, the quotas and the allocations of "
        "this subject; else everything, which needs the right to list ResourceQuotas, and Seeds with the right to list "
        "these. A new stream begins without what changed before: read it after the stream has begun.",
        "Events",
        str,
        query=(
            Parameter("project", "Only what limits this project", {"type": "string", "pattern": f"^{NAME.pattern}$"}),
            Parameter(
                "organization",
                "Only what limits this organization",
                {"type": "string", "pattern": f"^{NAME.pattern}$"},
            ),
        ),
        problems=(403, 404, 422),
        streams=True,
        media_type="text/event-stream",
    ),
    *PLATFORM,
)
