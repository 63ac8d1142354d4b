"""What a request says beside its path: query, body, conditions. Each function raises ProblemError. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from master.apiserver.conditions import Preconditions
from master.apiserver.problem import FieldError, ProblemError, of_validation
from master.apiserver.route import Route

LONGEST = 256  # characters of what somebody sent, in an answer

_JSON = re.compile(r'application/json\s*(;\s*charset\s*=\s*("utf-8"|utf-8)\s*)?;?', re.IGNORECASE)


def field(request: web.BaseRequest, name: str) -> str:
    """The value of a header that comes once, else nothing."""
    values = request.headers.getall(name, ())
    return values[0] if len(values) == 1 else ""


def read_query(route: Route, raw: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(raw, keep_blank_values=True, strict_parsing=True, max_num_fields=16) if raw else []
    except ValueError:
        raise ProblemError(400, "the query is malformed") from None
    schemas = {each.name: each.schema for each in route.query}
    found: dict[str, str] = {}
    for name, value in pairs:
        schema = schemas.get(name)
        if schema is None or name in found:
            raise ProblemError(400, f"the query has {name[:64]!r} twice, or this route does not know it")
        least, most = schema.get("minimum"), schema.get("maximum")
        if isinstance(least, int) and isinstance(most, int):
            if not re.fullmatch(r"[0-9]{1,9}", value) or not least <= int(value) <= most:
                raise ProblemError(400, f"{name} must be a whole number from {least} to {most}")
        elif isinstance(pattern := schema.get("pattern"), str) and not re.fullmatch(pattern, value):
            raise ProblemError(400, f"{name} is malformed, or not what a Link of an earlier answer had")
        elif isinstance(choices := schema.get("enum"), list) and value not in choices:
            raise ProblemError(400, f"{name} must be one of {', '.join(choices)}")
        found[name] = value
    return found


def check_media_type(request: web.Request) -> None:
    """Raises 415. A body that says nothing of itself is taken for JSON, as an API server of Kubernetes does."""
    if "Content-Type" in request.headers and not _JSON.fullmatch(field(request, "Content-Type")):
        raise ProblemError(
            415, "the body must be application/json, in UTF-8", headers=(("Accept", "application/json"),)
        )
    if field(request, "Content-Encoding").lower() not in ("", "identity"):
        raise ProblemError(415, "the body must not be compressed", headers=(("Accept-Encoding", "identity"),))


def decode_body(route: Route, body: bytes) -> object:
    """400 for what is no JSON, 422 for JSON that does not fit."""
    try:
        found: object = msgspec.json.decode(body, type=route.body)
        _check_keys(body)
    except msgspec.ValidationError as error:
        raise of_validation(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        detail = f"the body is not JSON: {error}"[:LONGEST]
        raise ProblemError(400, detail, errors=[FieldError("", detail)]) from None
    except RecursionError:
        raise ProblemError(400, "the body is nested too deep") from None
    return found


def read_conditions(route: Route, request: web.Request) -> Preconditions:
    """If-Match and If-None-Match of a route that has an ETag."""
    if not (route.versioned or route.conditional):
        return Preconditions()
    return Preconditions(None if route.versioned else _one(request, "If-Match"), _one(request, "If-None-Match"))


def _one(request: web.Request, name: str) -> str | None:
    if len(request.headers.getall(name, ())) > 1:
        raise ProblemError(400, f"there must be one {name}")
    return request.headers.get(name)


def _check_keys(raw: bytes) -> None:
    """Of a key that is there twice, one reader takes the first, another the last (RFC 8259, section 4)."""
    json.loads(raw.decode(), object_pairs_hook=_distinct, parse_int=str, parse_float=str, strict=False)


def _distinct(pairs: Sequence[tuple[str, object]]) -> None:
    keys: set[str] = set()
    for key, _ in pairs:
        if key in keys:
            detail = f"the body has the key {key[:64]!a} twice in one object"
            raise ProblemError(400, detail, errors=[FieldError("", detail)])
        keys.add(key)
