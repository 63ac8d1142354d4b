"""The routes, and everything about each that the OpenAPI document says and the server holds it to. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from urllib.parse import unquote

from master.apiserver import allocation_types as allocations
from master.apiserver import previews
from master.apiserver import serializers as types

Method = Literal["GET", "POST", "PUT", "DELETE"]

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
PATTERNS = {"decision": re.compile(r"[0-9A-Za-z]{8}")}
"""Of parameters that are no names of objects."""

MAX_LIMIT = 500


@dataclass(frozen=True)
class Parameter:
    name: str
    what: str
    schema: dict[str, object]


@dataclass(frozen=True)
class Route:
    """`handler` is a method of `Handlers`, `AllocationHandlers` or `PreviewHandlers`. `replayed`: the status where all
    was there already. `problems`: statuses beside those that every route has."""

    method: Method
    path: str
    handler: str
    summary: str
    answer: Any = None
    status: int = 200
    body: Any = None
    query: tuple[Parameter, ...] = ()
    problems: tuple[int, ...] = ()
    conditional: bool = False
    public: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    replayed: int = 0
    reads: bool = False
    media_type: str = "application/json"

    @cached_property
    def parameters(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(self.path)))

    @property
    def writes(self) -> bool:
        return self.method != "GET" and not self.reads


_ETAG = {"ETag": "The version of the limits, for If-Match. It does not change with the use."}
_KIND = Parameter("subjectKind", "Only quotas of this kind of subject", {"enum": ["project", "organization"]})
_SUBJECT = Parameter("subjectName", "Only quotas of the subject of this name", {"type": "string"})
_CHANGED = {"ETag": "The version of the allocation, for If-Match."}
_LIST = {"ETag": "The version of this page.", "Link": "The next page, rel=next, if there is one"}
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
    Route("GET", "/openapi.json", "openapi", "This document", dict[str, Any], public=True),
    Route("GET", "/docs", "docs", "This document as a page for people", str, public=True, media_type="text/html"),
    Route(
        "GET",
        "/api/v1/organizations/{organization}/quotas",
        "get_organization_quotas",
        "What an organization may use, what of it is used, and what is free",
        types.OrganizationQuotas,
        problems=(404,),
        headers=_ETAG,
    ),
    Route(
        "PUT",
        "/api/v1/organizations/{organization}/quotas",
        "put_organization_quotas",
        "Set what an organization may use",
        types.OrganizationQuotas,
        body=types.OrganizationQuotasUpdate,
        problems=(403, 404, 409),
        conditional=True,
        headers=_ETAG,
    ),
    Route(
        "GET",
        "/api/v1/organizations/{organization}/allocations",
        "list_allocations",
        "Allocations of an organization, by ID: of the projects that the user may see",
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
            allocations.Allocation | list[allocations.Allocation],
            201,
            allocations.Creates,
            problems=(403, 404, 409),
            headers={**_CHANGED, "Location": "The allocation, where one was asked for"},
            replayed=200,
        )
        for path, handler, what in (
            (
                "/api/v1/organizations/{organization}/allocations",
                "create_allocations",
                "Allocate, one or several, all or nothing; 200: all are there already",
            ),
            (
                "/api/v1/organizations/{organization}/projects/{project}/allocations",
                "create_project_allocations",
                "Allocate for a project, one or several, all or nothing; 200: all are there already",
            ),
        )
    ),
    Route(
        "GET",
        _ALLOCATION,
        "get_allocation",
        "One allocation",
        allocations.Allocation,
        problems=(403, 404),
        headers=_CHANGED,
    ),
    Route(
        "PUT",
        _ALLOCATION,
        "put_allocation",
        "Set the resources of an allocation",
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
        types.Quota,
        problems=(404,),
        headers=_ETAG,
    ),
    Route(
        "POST",
        "/api/v2/projects/{project}/quotacalculation",
        "calculate",
        "Whether something would fit into the quotas of a project and of its organization",
        previews.CalculationResult,
        body=previews.Calculation,
        problems=(404,),
        reads=True,
    ),
    Route(
        "POST",
        "/api/v1/fits",
        "fits",
        "Whether something would fit into the quotas of a project or an organization",
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
        previews.WhereResult,
        body=previews.WhereRequest,
        problems=(404,),
        reads=True,
    ),
    Route(
        "GET",
        "/api/v1/decisions/{decision}",
        "get_decision",
        "Where a decision can be read: seeds keep them",
        status=404,
        problems=(404,),
    ),
    Route(
        "GET",
        "/api/v2/quotas",
        "list_quotas",
        "Quotas of projects and organizations, by name",
        list[types.Quota],
        query=(_KIND, _SUBJECT, _LIMIT, _CONTINUE),
        problems=(403,),
        headers={"Link": "The next page, rel=next, if there is one"},
    ),
    Route(
        "POST",
        "/api/v2/quotas",
        "create_quota",
        "Make a quota",
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
        types.Quota,
        problems=(403, 404),
        headers=_ETAG,
    ),
    Route(
        "PUT",
        "/api/v2/quotas/{name}",
        "put_quota",
        "Set the limits of a quota",
        types.Quota,
        body=types.QuotaUpdate,
        problems=(403, 404, 409),
        conditional=True,
        headers=_ETAG,
    ),
    Route(
        "DELETE",
        "/api/v2/quotas/{name}",
        "delete_quota",
        "Delete a quota: its subject is limited by its other quotas, or by a default one",
        None,
        204,
        problems=(403, 404, 409),
        conditional=True,
    ),
)


def find(method: str, path: str) -> tuple[Route | None, dict[str, str], list[str]]:
    """The route and its parameters, or else the methods that the path has. Names that no object has are not found."""
    others: list[str] = []
    for route in ROUTES:
        match = route.pattern.fullmatch(path)
        if match is None:
            continue
        given = {name: unquote(value) for name, value in match.groupdict().items()}
        if not all(PATTERNS.get(name, NAME).fullmatch(value) for name, value in given.items()):
            return None, {}, []
        if route.method == method or (method == "HEAD" and route.method == "GET"):
            return route, given, []
        others.append(route.method)
    return None, {}, others
