"""What can go wrong with a request, named as Kubernetes names it."""

from __future__ import annotations

import re
from enum import Enum

import msgspec

_NO_ROLE = re.compile(r'User "[^"]*" cannot [a-z]+ ')
LONGEST_MESSAGE = 8192  # characters
LONGEST_RETRY_AFTER = 300.0  # seconds; whoever answers may ask for more


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
        self.message = message[:LONGEST_MESSAGE]  # what was asked for may be long, too, where others chose it
        super().__init__(self.message)
        self.status = status
        self.reason = reason
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
    @property
    def lacks_right(self) -> bool:
        """No role allows it. So says an API server that has just started of everything, until it has read the roles."""
        return _NO_ROLE.search(self.message) is not None


class Unauthorized(ApiError):
    pass


class Invalid(ApiError):
    """The API server found the object wrong; see `causes`."""


class TooManyRequests(ApiError):
    pass


class Unavailable(ApiError):
    """No answer, or the answer that none can be given now. A write may have happened all the same."""


class BadAnswer(Enum):
    """What was wrong with an answer that is not taken: the label of a metric."""

    MALFORMED = "Malformed"
    HANDSHAKE_TOO_LARGE = "HandshakeTooLarge"
    HEAD_TOO_LARGE = "HeadTooLarge"
    INTERIM_ANSWERS = "InterimAnswers"
    ANOTHER_PROTOCOL = "AnotherProtocol"
    COMPRESSED = "Compressed"
    FRAMING = "Framing"
    SECOND_ANSWER = "SecondAnswer"
    TOO_LARGE = "TooLarge"
    TOO_MANY = "TooMany"


class Malformed(ApiError):
    """An answer that does not fit the type it is read as, or is beyond a bound."""

    def __init__(self, status: int, reason: str, message: str, *, wrong: BadAnswer = BadAnswer.MALFORMED) -> None:
        super().__init__(status, reason, message)
        self.wrong = wrong


class TooLarge(Malformed):
    """The answer is larger than is read."""

    def __init__(self, message: str) -> None:
        super().__init__(200, "Malformed", message, wrong=BadAnswer.TOO_LARGE)


class TooMany(Malformed):
    """Of a kind there are more objects than are read, or more that cannot be read, or its list does not end."""

    def __init__(self, message: str) -> None:
        super().__init__(200, "Malformed", message, wrong=BadAnswer.TOO_MANY)


_BY_REASON: dict[str, type[ApiError]] = {
    "NotFound": NotFound,
    "Conflict": Conflict,
    "AlreadyExists": AlreadyExists,
    "Expired": Gone,
    "Gone": Gone,
    "Forbidden": Forbidden,
    "Unauthorized": Unauthorized,
    "Invalid": Invalid,
    "TooManyRequests": TooManyRequests,
    "ServiceUnavailable": Unavailable,
    "Timeout": Unavailable,
    "ServerTimeout": Unavailable,
}
_BY_STATUS: dict[int, tuple[type[ApiError], str]] = {
    401: (Unauthorized, "Unauthorized"),
    403: (Forbidden, "Forbidden"),
    404: (NotFound, "NotFound"),
    409: (Conflict, "Conflict"),
    410: (Gone, "Gone"),
    422: (Invalid, "Invalid"),
    429: (TooManyRequests, "TooManyRequests"),
    502: (Unavailable, "BadGateway"),
    503: (Unavailable, "ServiceUnavailable"),
    504: (Unavailable, "Timeout"),
}


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: float | None = None
    causes: list[Cause] | None = None


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_LONGEST_MESSAGE = 4096  # it goes into logs and conditions
_LONGEST_REASON = 256
_LONGEST_CAUSE = 64 * 1024  # one has what fits (seed/webhooks/fits.py)
_MOST_CAUSES = 64
_MOST_VALUES = 10_000  # of what is decoded: two million causes took 0.4 s of the event loop

_decode_status = msgspec.json.Decoder(_Status).decode


def api_error(status: int, content: bytes, what: str, retry_after: str | None = None) -> ApiError:
    try:
        if sum(map(content.count, (b",", b"[", b"{"))) > _MOST_VALUES:
            raise msgspec.DecodeError("it has too many values")
        answer = _decode_status(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # proxies and load balancers answer in words of their own
        answer = _Status(message=content[:200].decode(errors="replace").strip())
    code = answer.code if 400 <= answer.code < 600 else status
    kind, reason = _BY_STATUS.get(code, (ApiError, "Unknown"))
    kind = _BY_REASON.get(answer.reason, kind)
    details = answer.details or _Details()
    seconds = details.retry_after_seconds
    if seconds is None and retry_after is not None and retry_after.isdecimal():
        seconds = float(retry_after)
    if seconds is not None:
        seconds = min(max(seconds, 0.0), LONGEST_RETRY_AFTER)
    return kind(
        code,
        answer.reason[:_LONGEST_REASON] or reason,
        f"{what}: {answer.message[:_LONGEST_MESSAGE] or reason}",
        seconds,
        tuple(
            Cause(cause.reason[:_LONGEST_REASON], cause.message[:_LONGEST_CAUSE], cause.field[:_LONGEST_MESSAGE])
            for cause in (details.causes or [])[:_MOST_CAUSES]
        ),
    )
