"""What the API server, and the webhook that it asks, say of an allocation, as problems. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from common.kube.client.errors import ApiError, Cause, Conflict, Forbidden, Invalid, NotFound, Unavailable
from common.quota import resources
from common.quota.quantity import UNIT, QuantityError
from master.apiserver.call import of_api_error
from master.apiserver.problem import AllocationShortage, Exceeded, FieldError, ProblemError, pointer

_QUOTA = re.compile(r"exceeded quota: ([^,]+),")
_DECISION = re.compile(r"decision ([0-9A-Z]{8})\b")
_RESOURCE = re.compile(r"spec\.resources\[([0-9]{1,2})\]")
_AMOUNTS = re.compile(
    r"requested \S+=([^\s,]+), used \S+=([^\s,]+), limited \S+=([^\s,]+)(?:, being created \S+=([^\s,]+))?"
)


def problem_of(error: ApiError, at: str, subject_of: Callable[[str], str], places: Sequence[str] = ()) -> ProblemError:
    """`at`: where in the body the allocation is. `subject_of`: what a quota limits, by the quota's name. `places`:
    where the body has its resources, if not below `at` in their order."""
    if isinstance(error, Forbidden):
        short = [found for cause in error.causes if (found := _short(cause)) is not None]
        if short:
            return _exceeded(error.message, short, subject_of)
        if any(cause.reason == "NamespaceTerminating" for cause in error.causes):
            return ProblemError(409, "the organization is being deleted", code="organization_deleted")
        return of_api_error(error)
    if isinstance(error, Invalid) or error.status == 400:
        return _invalid(error, at, places)
    if isinstance(error, NotFound):
        return ProblemError(503, "the namespace of the organization does not exist yet")
    if isinstance(error, Conflict):
        return ProblemError(409, "others write the same allocation all the time", code="contended", retryable=True)
    if isinstance(error, Unavailable) and error.causes:
        return ProblemError(503, error.causes[0].message or error.message)
    if "failed calling webhook" in error.message:
        return ProblemError(503, "the webhook that admits allocations does not answer")
    return ProblemError(503, "the API server of the master cannot be asked now; what was written is not known")


class _Short(msgspec.Struct, frozen=True):
    """`may_return`: what is being created is as much as what is short. If its creation fails, there is room."""

    shortage: AllocationShortage
    may_return: bool


def _short(cause: Cause) -> _Short | None:
    found = _AMOUNTS.search(cause.message)
    if cause.reason != "QuotaExceeded" or found is None:
        return None
    try:
        texts = found.groups(default="0")
        requested, used, limited, creating = (resources.parse({cause.field: text})[cause.field] for text in texts)
    except QuantityError:
        return None
    shortage = AllocationShortage(
        type=cause.field,
        requested=-(-requested // UNIT),
        free=max(limited - used, 0) // UNIT,
        capacity=limited // UNIT,
    )
    return _Short(shortage, requested <= limited and creating >= requested + used - limited)


def _exceeded(message: str, short: Sequence[_Short], subject_of: Callable[[str], str]) -> ProblemError:
    quota, decision = _QUOTA.search(message), _DECISION.search(message)
    name = quota[1] if quota is not None else ""
    shortages = [each.shortage for each in short]
    detail = "; ".join(
        f"{each.type}: requested {each.requested}, free {each.free} of {each.capacity} in {subject_of(name)}"
        for each in shortages
    )
    exceeded = Exceeded(name, decision[1] if decision is not None else "", shortages)
    retryable = all(each.may_return for each in short)
    return ProblemError(409, detail, code="quota_exceeded", exceeded=exceeded, retryable=retryable)


def _invalid(error: ApiError, at: str, places: Sequence[str]) -> ProblemError:
    causes = error.causes or (Cause(message=error.message),)
    errors = [
        FieldError(
            _place(cause.field, at, places), cause.message.removeprefix('Invalid value: "object": ') or error.message
        )
        for cause in causes
    ]
    return ProblemError(422, "; ".join(each.detail for each in errors), errors=errors)


def _place(field: str, at: str, places: Sequence[str]) -> str:
    """metadata.name of the object is metadata.id here; what is elsewhere in it is so in the body."""
    if places and (resource := _RESOURCE.match(field)):
        return places[int(resource[1])] + pointer(field[resource.end() :])
    if field == "metadata.name":
        return f"{at}/metadata/id"
    if field.startswith("spec.project"):
        return f"{at}/metadata/projectID"
    return f"{at}{pointer(f'.{field}')}" if field.startswith("spec") else at
