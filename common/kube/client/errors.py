"""What can go wrong with a request, named as Kubernetes names it."""

from __future__ import annotations

import msgspec


class Cause(msgspec.Struct, frozen=True):
    """One field that the API server found wrong."""

    reason: str = ""
    message: str = ""
    field: str = ""


class ApiError(Exception):
    """The API server refused, or could not answer.

    `status` is the HTTP status (0: no answer), `reason` Kubernetes' word for it, `retry_after` seconds or None.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: tuple[Cause, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes


class NotFound(ApiError):
    pass


class Conflict(ApiError):
    """The object has changed. After a broken connection it may be our own write that changed it."""


class AlreadyExists(ApiError):
    pass


class Gone(ApiError):
    """The resource version or continue token is too old: list again."""


class Forbidden(ApiError):
    pass


class Unauthorized(ApiError):
    pass


class Invalid(ApiError):
    """The API server found the object wrong; see `causes`."""


class TooManyRequests(ApiError):
    pass


class Unavailable(ApiError):
    """No answer, or the answer that none can be given now. A write may have happened all the same."""


class Malformed(ApiError):
    """An answer that does not fit the type it is read as, or is too large."""
