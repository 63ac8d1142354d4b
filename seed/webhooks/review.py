"""AdmissionReview, as API servers send it and as they are answered."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Generic, TypeVar
from urllib.parse import parse_qs

import msgspec

from common.kube.client.meta import Int64, Object, ObjectMeta
from common.server.http_parser import Response
from seed.admission.refusal import Refusal
from seed.admission.types import MARGIN, Verdict

MAX_BODY = 4 * 2**20  # two objects, of which etcd takes at most 1.5 MiB each
MAX_QUOTES = 20_000  # in a review: of each name and text two. A Machine with its managedFields has some hundred
MAX_UID = 64
MAX_USER = 256  # characters that are kept of a user's name
MAX_NAME = 253
DEFAULT_TIMEOUT = 3.0  # seconds, when the API server does not say
LONGEST_TIMEOUT = 30.0
_LONGEST_QUERY = 256
_PIECE = 64 * 1024

T = TypeVar("T")


class TooManyNames(msgspec.ValidationError):
    """It is refused before it is decoded: each name costs many times its bytes."""


def check(body: bytes) -> None:
    """Raises TooManyNames."""
    found = 0
    for begin in range(0, len(body), _PIECE):  # nothing is counted beyond the bound
        found += body.count(b'"', begin, begin + _PIECE)
        if found > MAX_QUOTES:
            raise TooManyNames(f"it has more than {MAX_QUOTES // 2} names and texts")


class User(msgspec.Struct):
    """Of the name so much as is kept with the decision and logged."""

    username: str = ""

    def __post_init__(self) -> None:
        if len(self.username) > MAX_USER:
            self.username = f"{self.username[:MAX_USER]}..."


class Head(msgspec.Struct, rename="camel", kw_only=True):
    """What a request says beside its objects."""

    uid: str
    operation: str
    name: str = ""
    namespace: str = ""
    user_info: User = msgspec.field(default_factory=User)
    dry_run: bool = False

    def __post_init__(self) -> None:
        """As API servers write it. Raises ValueError, which decoders turn into msgspec.ValidationError."""
        if len(self.uid) > MAX_UID or max(len(self.name), len(self.namespace)) > MAX_NAME:
            raise ValueError("its uid, name or namespace is too long")
        self.operation = self.operation[:MAX_UID]


class _Asked(msgspec.Struct):
    uid: str = ""


class _Who(msgspec.Struct):
    request: _Asked


def uid_of(body: bytes) -> str:
    """Whom to answer, without its objects. Raises msgspec.MsgspecError, UnicodeDecodeError, RecursionError."""
    return _who(body).request.uid[:MAX_UID]


class AdmissionRequest(Head, Generic[T], rename="camel", kw_only=True):
    object: T | None = None
    old_object: T | None = None


class Review(msgspec.Struct, Generic[T]):
    request: AdmissionRequest[T]


class GroupVersionResource(msgspec.Struct, frozen=True):
    """`version`: in which the objects are sent."""

    group: str = ""
    version: str = ""
    resource: str = ""


class RawRequest(Head, rename="camel", kw_only=True):
    """Where one webhook is asked about several kinds: what the objects are is told by `resource` and `sub_resource`."""

    resource: GroupVersionResource
    sub_resource: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class RawReview(msgspec.Struct):
    request: RawRequest


class _ScaleSpec(msgspec.Struct, frozen=True):
    replicas: Int64 = 0


class Scale(Object, frozen=True, kw_only=True):
    """Of autoscaling/v1: what `kubectl scale` and autoscalers write."""

    spec: _ScaleSpec = _ScaleSpec()


class _Cause(msgspec.Struct, omit_defaults=True):
    reason: str
    message: str
    field: str = ""


class _Details(msgspec.Struct, rename="camel", omit_defaults=True):
    causes: list[_Cause] = []
    retry_after_seconds: int = 0


class _Status(msgspec.Struct):
    code: int
    reason: str
    message: str
    details: _Details
    status: str = "Failure"


class _Response(msgspec.Struct, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    status: _Status | None = None
    warnings: list[str] = []
    patch_type: str = ""
    patch: str = ""


class _Answer(msgspec.Struct, rename="camel"):
    response: _Response
    api_version: str = "admission.k8s.io/v1"
    kind: str = "AdmissionReview"


UID = re.compile("[0-9A-Za-z-]{1,64}")
_NAME = re.compile("[0-9a-z.-]{1,253}")
_KEY = re.compile("[0-9a-z-]{1,63}/[0-9a-z.-]{1,253}")

_who = msgspec.json.Decoder(_Who).decode
_encode = msgspec.json.Encoder().encode
_JSON = "application/json"


@lru_cache(maxsize=64)
def patience(query: str) -> float:
    """Seconds until the answer must be on its way; the API server puts its own timeout into the query."""
    text = parse_qs(query[:_LONGEST_QUERY]).get("timeout", [""])[0]
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = DEFAULT_TIMEOUT
    if not 0 < seconds <= LONGEST_TIMEOUT:
        seconds = DEFAULT_TIMEOUT
    return max(seconds - MARGIN, seconds / 2)


def is_named(subject: Object, *, namespaced: bool = True) -> bool:
    """As every API server names what it sends. A tenant knows its cluster's URL, and accounts keep what it sends."""
    return bool(UID.fullmatch(subject.metadata.uid) and (_KEY if namespaced else _NAME).fullmatch(subject.metadata.key))


def has_name(metadata: ObjectMeta) -> bool:
    """A name and a namespace that can be parts of a path."""
    return bool(_KEY.fullmatch(metadata.key)) and is_short(metadata)


def is_short(metadata: ObjectMeta) -> bool:
    """So that it can be kept with a decision."""
    return max(len(metadata.name), len(metadata.namespace)) <= MAX_NAME and len(metadata.uid) <= MAX_UID


def decided(uid: str, found: Verdict) -> Response:
    """What the request with this uid is told."""
    refusal = found.refusal
    if refusal is None:
        return _answer(_Response(uid=uid, allowed=True, warnings=list(found.warnings)))
    return _answer(_Response(uid=uid, allowed=False, status=_status(refusal, found.message)))


def patched(uid: str, operations: Sequence[object]) -> Response:
    """Allowed with these operations of RFC 6902, or as it is without any."""
    if not operations:
        return _answer(_Response(uid=uid, allowed=True))
    patch = base64.b64encode(_encode(operations)).decode()
    return _answer(_Response(uid=uid, allowed=True, patch_type="JSONPatch", patch=patch))


def _answer(response: _Response) -> Response:
    return Response(200, _encode(_Answer(response)), _JSON)


def _status(refusal: Refusal, message: str) -> _Status:
    # kubectl prints the causes of a 422 and nothing else
    said = message if refusal.code == 422 else ""
    causes = [_Cause(cause.reason, said or cause.message, cause.field) for cause in refusal.causes]
    return _Status(
        code=refusal.code,
        reason=refusal.reason,
        message=message,
        details=_Details(causes=causes, retry_after_seconds=refusal.retry_seconds),
    )
