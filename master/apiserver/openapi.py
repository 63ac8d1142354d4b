"""The OpenAPI document, made of the routes and of the types that parse the requests. Pure."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec

from common.runtime.metrics import build_version
from master.apiserver.problem import MEDIA_TYPE, Problem
from master.apiserver.routes import NAME, PATTERNS, ROUTES, Route

_Json = dict[str, Any]
_ALWAYS = (400, 401, 408, 413, 429, 500, 503)


@lru_cache(maxsize=1)
def document() -> _Json:
    types = {each for route in ROUTES for each in (route.answer, route.body) if each is not None} | {Problem}
    ordered = sorted(types, key=str)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, _Json] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "SeedQuota",
            "version": build_version(),
            "description": "Hard quotas over many Kubernetes clusters. A token or client certificate is one for the "
            "master's API server.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"certificate": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


def _operation(route: Route, schemas: dict[Any, _Json]) -> _Json:
    words = route.handler.split("_")
    operation: _Json = {
        "operationId": words[0] + "".join(word.capitalize() for word in words[1:]),
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": {
            **{str(status): _answer(route, status, schemas) for status in (route.status, route.replayed) if status},
            **{str(status): _problem(status, schemas) for status in _problems(route)},
        },
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content("application/json", schemas[route.body])}
    if route.public:
        operation["security"] = []
    return operation


def _parameters(route: Route) -> list[_Json]:
    path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": f"^{PATTERNS.get(name, NAME).pattern}$"},
        }
        for name in route.parameters
    ]
    query = [
        {"name": each.name, "in": "query", "description": each.what, "schema": each.schema} for each in route.query
    ]
    headers: list[_Json] = []
    if route.conditional:
        what = "An ETag that was read before. If the limits have changed since, nothing is done (412)."
        headers = [{"name": "If-Match", "in": "header", "description": what, "schema": {"type": "string"}}]
    return [*path, *query, *headers]


def _answer(route: Route, status: int, schemas: dict[Any, _Json]) -> _Json:
    answer: _Json = {"description": HTTPStatus(status).phrase}
    if route.headers:
        answer["headers"] = {
            name: {"description": what, "schema": {"type": "string"}} for name, what in route.headers.items()
        }
    if route.answer is not None:
        answer["content"] = _content(route.media_type, schemas[route.answer])
    return answer


def _problems(route: Route) -> list[int]:
    own = {*route.problems, *((412,) if route.conditional else ()), *((422,) if route.body is not None else ())}
    return sorted({*_ALWAYS, *own} - ({401} if route.public else set()))


def _problem(status: int, schemas: dict[Any, _Json]) -> _Json:
    return {"description": HTTPStatus(status).phrase, "content": _content(MEDIA_TYPE, schemas[Problem])}


def _content(media_type: str, schema: _Json) -> _Json:
    return {media_type: {"schema": schema}}
