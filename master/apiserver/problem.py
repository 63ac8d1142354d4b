"""What is wrong with a request, as problem details (RFC 9457) with the two fields that Unikorn's clients read. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus

import msgspec

TYPES = "https://seedquota.io/errors/"
MEDIA_TYPE = "application/problem+json"

_UNIKORN = {
    400: "invalid_request",
    401: "access_denied",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "request_entity_too_large",
    422: "unprocessable_content",
    500: "server_error",
}
_UNIKORN_EXCEEDED = "allocation exceeded quota"
_CODES = {
    400: "malformed",
    401: "unauthenticated",
    404: "not_found",
    408: "too_slow",
    412: "precondition_failed",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    429: "too_many_requests",
    500: "failed",
    503: "unavailable",
}
_RETRYABLE = (408, 429, 503)
_AT = re.compile(r"`\$([^`]*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+)\]|\[\.\.\.\]")


class FieldError(msgspec.Struct):
    """One field of the body that is wrong. `pointer`: where it is (RFC 6901); empty is the whole body."""

    pointer: str
    detail: str


class AllocationShortage(msgspec.Struct):
    """Of one type more was requested than is free."""

    type: str
    requested: int
    free: int
    capacity: int


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a request was not done. `quota`, `decision`, `shortages`: of quota_exceeded. `existing`: the ID of the
    allocation that is in the way."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    quota: str = ""
    decision: str = ""
    retryable: bool
    shortages: list[AllocationShortage] = []
    existing: str = ""
    errors: list[FieldError] = []
    error: str
    error_description: str


class Exceeded(msgspec.Struct, frozen=True):
    """Which quota refuses, by which decision, and what is short."""

    quota: str
    decision: str
    shortages: Sequence[AllocationShortage]


class ProblemError(Exception):
    """Ends a request. `headers` are the answer's."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str = "",
        errors: Sequence[FieldError] = (),
        retryable: bool | None = None,
        headers: Sequence[tuple[str, str]] = (),
        existing: str = "",
        exceeded: Exceeded | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code or _CODES.get(status, _word(status))
        self.errors = list(errors)
        self.existing = existing
        self.exceeded = exceeded
        self.retryable = status in _RETRYABLE if retryable is None else retryable
        self.headers = (*headers, *((("Retry-After", "1"),) if status in (429, 503) else ()))

    def problem(self) -> Problem:
        exceeded = self.exceeded
        return Problem(
            type=f"{TYPES}{self.code}",
            title=self.code.replace("_", " ").capitalize(),
            status=self.status,
            code=self.code,
            detail=str(self),
            quota=exceeded.quota if exceeded is not None else "",
            decision=exceeded.decision if exceeded is not None else "",
            retryable=self.retryable,
            shortages=list(exceeded.shortages) if exceeded is not None else [],
            existing=self.existing,
            errors=self.errors,
            error=_UNIKORN.get(self.status, _word(self.status)),
            error_description=_UNIKORN_EXCEEDED if exceeded is not None else str(self),
        )


def invalid(pointer: str, detail: str) -> ProblemError:
    return ProblemError(422, detail, errors=[FieldError(pointer, detail)])


def of_validation(error: msgspec.ValidationError) -> ProblemError:
    """msgspec ends its message with the path of what is wrong, such as `$.capacity[0].amount`."""
    text = str(error)
    found = _AT.search(text)
    detail = text.partition(" - at ")[0] if found else text
    return invalid(pointer(found[1]) if found else "", detail)


def pointer(path: str) -> str:
    """What msgspec does not tell, the key of a map, ends it."""
    steps = []
    for step in _STEP.finditer(path):
        if step[0] == "[...]":
            break
        steps.append(escape(step[1] or step[2]))
    return "".join(f"/{step}" for step in steps)


def escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _word(status: int) -> str:
    return HTTPStatus(status).phrase.lower().replace(" ", "_").replace("-", "_")
