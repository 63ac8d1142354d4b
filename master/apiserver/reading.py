"""What a request says beside its path: query, body, conditions. Each function raises ProblemError. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

import msgspec

from common.server.http_parser import Request
from master.apiserver.conditions import Preconditions
from master.apiserver.problem import FieldError, ProblemError, of_validation
from master.apiserver.routes import Route

LONGEST = 256  # characters of what somebody sent, in an answer

_JSON = re.compile(r'application/json\s*(;\s*charset\s*=\s*("utf-8"|utf-8)\s*)?;?', re.IGNORECASE)


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
            raise ProblemError(400, f"{name} is not what a Link of an earlier answer had")
        elif isinstance(choices := schema.get("enum"), list) and value not in choices:
            raise ProblemError(400, f"{name} must be one of {', '.join(choices)}")
        found[name] = value
    return found


def read_body(route: Route, request: Request) -> object:
    """400 for what is no JSON, 415 for what says that it is something else, 422 for JSON that does not fit."""
    if route.body is None:
        return None
    _check_media_type(request)
    try:
        found: object = msgspec.json.decode(request.body, type=route.body)
        _check_keys(request.body)
    except msgspec.ValidationError as error:
        raise of_validation(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        detail = f"the body is not JSON: {error}"[:LONGEST]
        raise ProblemError(400, detail, errors=[FieldError("", detail)]) from None
    except RecursionError:
        raise ProblemError(400, "the body is nested too deep") from None
    return found


def read_conditions(route: Route, request: Request) -> Preconditions:
    """If-Match and If-None-Match of a route that has an ETag."""
    reads = route.method == "GET"
    if not (reads or route.conditional):
        return Preconditions()
    return Preconditions(None if reads else _one(request, "If-Match"), _one(request, "If-None-Match"))


def _one(request: Request, name: str) -> str | None:
    value = request.field(name.lower())
    if value is None and name.lower().encode() in request.fields:
        raise ProblemError(400, f"there must be one {name}")
    return value


def _check_media_type(request: Request) -> None:
    """A body that says nothing of itself is taken for JSON, as an API server of Kubernetes does."""
    if request.body and b"content-type" in request.fields and not _JSON.fullmatch(request.field("content-type") or ""):
        raise ProblemError(
            415, "the body must be application/json, in UTF-8", headers=(("Accept", "application/json"),)
        )
    if b"content-encoding" in request.fields and (request.field("content-encoding") or "").lower() != "identity":
        raise ProblemError(415, "the body must not be compressed", headers=(("Accept-Encoding", "identity"),))


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
