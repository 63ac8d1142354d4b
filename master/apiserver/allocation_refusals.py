"""What the API server, and the webhook that it asks, say of an allocation, as problems. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from common.kube.client.errors import ApiError, Cause, Conflict, Forbidden, Invalid, NotFound, Unavailable
from common.quota import resources
from common.quota.quantity import UNIT, QuantityError
from master.apiserver.call import of_api_error
from master.apiserver.problem import AllocationShortage, Exceeded, FieldError, ProblemError, pointer

_QUOTA = re.compile(r"exceeded quota: ([^,]+),")
_DECISION = re.compile(r"decision ([0-9A-Z]{8})\b")
_RESOURCE = re.compile(r"spec\.resources\[([0-9]{1,2})\]")
_AMOUNTS = re.compile(r"requested \S+=(\S+), used \S+=(\S+), limited \S+=(\S+)")


def problem_of(error: ApiError, at: str, subject_of: Callable[[str], str], places: Sequence[str] = ()) -> ProblemError:
    """`at`: where in the body the allocation is. `subject_of`: what a quota limits, by the quota's name. `places`:
    where the body has its resources, if not below `at` in their order."""
    if isinstance(error, Forbidden):
        shortages = [found for cause in error.causes if (found := _shortage(cause)) is not None]
        if shortages:
            return _exceeded(error.message, shortages, subject_of)
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


def _shortage(cause: Cause) -> AllocationShortage | None:
    found = _AMOUNTS.search(cause.message)
    if cause.reason != "QuotaExceeded" or found is None:
        return None
    try:
        requested, used, limited = (resources.parse({cause.field: text})[cause.field] for text in found.groups())
    except QuantityError:
        return None
    return AllocationShortage(
        type=cause.field,
        requested=-(-requested // UNIT),
        free=max(limited - used, 0) // UNIT,
        capacity=limited // UNIT,
    )


def _exceeded(message: str, shortages: list[AllocationShortage], subject_of: Callable[[str], str]) -> ProblemError:
    quota, decision = _QUOTA.search(message), _DECISION.search(message)
    name = quota[1] if quota is not None else ""
    detail = "; ".join(
        f"{each.type}: requested {each.requested}, free {each.free} of {each.capacity} in {subject_of(name)}"
        for each in shortages
    )
    exceeded = Exceeded(name, decision[1] if decision is not None else "", shortages)
    return ProblemError(409, detail, code="quota_exceeded", exceeded=exceeded)


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
