"""One request as handlers see it, and what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common.kube.client.errors import ApiError, Forbidden
from common.server.access_reviews import User
from master.apiserver.conditions import Preconditions
from master.apiserver.problem import ProblemError


@dataclass
class Call:
    """`changes` is for the audit line: what is written."""

    user: User
    parameters: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    preconditions: Preconditions
    changes: object = None


@dataclass
class RouteResponse:
    """`status`: that of the route, if it is 0. Bytes are sent as they are, all else as JSON. `version`: what If-Match
    of a later write is compared with (conditions.py)."""

    content: object
    headers: list[tuple[str, str]] = field(default_factory=list)
    status: int = 0
    version: str = ""


def of_api_error(error: ApiError) -> ProblemError:
    """What a handler did not expect."""
    if isinstance(error, Forbidden) and error.lacks_right:  # the user may do it, and the master may not
        return ProblemError(503, f"the API server has just started, or the master lacks a right: {error.message}")
    if isinstance(error, Forbidden):
        return ProblemError(403, error.message, code="refused_by_api_server")
    if error.status == 400:
        return ProblemError(422, error.message)
    return ProblemError(503, "the API server of the master cannot be asked now; what was written is not known")
