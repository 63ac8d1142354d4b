"""The OpenAPI document, made of the routes and of the types that parse the requests. Pure."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec

from common.runtime.metrics import build_version
from master.apiserver.problem import MEDIA_TYPE, Problem
from master.apiserver.route import NAME, PATTERNS, Route
from master.apiserver.routes import ROUTES, TAGS

_Json = dict[str, Any]
_ETAG = {"description": "The version of what is shown.", "schema": {"type": "string"}}
_ALWAYS = (400, 401, 408, 413, 429, 500, 503)


@lru_cache(maxsize=1)
def encoded(prefix: str = "") -> bytes:
    return msgspec.json.encode(document(prefix))


@lru_cache(maxsize=1)
def document(prefix: str = "") -> _Json:
    """`prefix`: the path below which clients reach the routes."""
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
            "contact": {"name": "SeedQuota", "url": "https://seedquota.io"},
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": f"{prefix}/"}],
        "security": [{"token": []}, {"certificate": []}],
        "tags": [{"name": name, "description": what} for name, what in TAGS.items()],
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
        "tags": [route.tag],
        "summary": route.summary,
        "description": route.description,
        "parameters": _parameters(route),
        "responses": {
            **{str(status): _answer(route, status, schemas) for status in (route.status, route.replayed) if status},
            **({"304": _unchanged()} if route.versioned else {}),
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
    return [*path, *query, *(_header(name, what) for name, what in _conditions(route))]


def _conditions(route: Route) -> list[tuple[str, str]]:
    if route.versioned:
        return [("If-None-Match", "An ETag that was read before. If nothing has changed since, the answer is 304.")]
    if not route.conditional:
        return []
    return [
        ("If-Match", "An ETag that was read before. If somebody has changed it since, nothing is done (412)."),
        ("If-None-Match", "`*`: if it exists, nothing is done (412)."),
    ]


def _header(name: str, what: str) -> _Json:
    return {"name": name, "in": "header", "description": what, "schema": {"type": "string"}}


def _unchanged() -> _Json:
    return {"description": HTTPStatus(304).phrase, "headers": {"ETag": _ETAG}}


def _answer(route: Route, status: int, schemas: dict[Any, _Json]) -> _Json:
    answer: _Json = {"description": HTTPStatus(status).phrase}
    said = {name: {"description": what, "schema": {"type": "string"}} for name, what in route.headers.items()}
    if route.versioned:
        said = {"ETag": _ETAG, **said}
    if said:
        answer["headers"] = said
    if route.answer is not None:
        answer["content"] = _content(route.media_type, schemas[route.answer])
    return answer


def _problems(route: Route) -> list[int]:
    own = {*route.problems, *((412,) if route.conditional else ()), *((415, 422) if route.body is not None else ())}
    return sorted({*_ALWAYS, *own} - ({401} if route.public else set()))


def _problem(status: int, schemas: dict[Any, _Json]) -> _Json:
    return {"description": HTTPStatus(status).phrase, "content": _content(MEDIA_TYPE, schemas[Problem])}


def _content(media_type: str, schema: _Json) -> _Json:
    return {media_type: {"schema": schema}}
