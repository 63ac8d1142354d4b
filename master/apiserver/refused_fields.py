"""What the API server found wrong in what was written, by the CRD, as errors of fields of the body. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from common.kube.client.errors import Cause, Invalid
from master.apiserver.guarantee_checks import WHERE
from master.apiserver.problem import FieldError, ProblemError, escape

_OF_ALL = 'Invalid value: "object": '  # begins what a rule of a whole object says


def refused_limits(error: Invalid, limits: Mapping[str, object]) -> ProblemError:
    """What the API server found wrong in the `quota` of a request."""
    return refused(error, "/quota", {name: f"/quota/{escape(name)}" for name in limits})


def refused(error: Invalid, pointer: str, pointers: Mapping[str, str]) -> ProblemError:
    """What the API server found wrong, by the CRD."""
    causes = error.causes or (Cause(message=error.message),)
    errors = [FieldError(_pointer(cause, pointer, pointers), cause.message.removeprefix(_OF_ALL)) for cause in causes]
    return ProblemError(422, "; ".join(each.detail for each in errors), errors=errors)


def _pointer(cause: Cause, pointer: str, pointers: Mapping[str, str]) -> str:
    if ".guaranteed" in cause.field or cause.message.removeprefix(_OF_ALL).startswith("guaranteed "):
        return WHERE
    for name, found in pointers.items():
        if cause.field.endswith((f".{name}", f"[{name}]")) or any(
            said in cause.message for said in (f": {name};", f": {name}: ")
        ):
            return found
    return pointer
