"""Alibaba Cloud's OpenAPI as far as sizes take: ECS calls, signed by Signature Version 3 (ACS3-HMAC-SHA256).

https://www.alibabacloud.com/help/en/sdk/product-overview/v3-request-structure-and-signature
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import quote

import msgspec

from seed.providers.flavour import Answer, CloudError, Http

VERSION = "2014-05-26"
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9._]{0,127}")
_EMPTY = hashlib.sha256(b"").hexdigest()
ShapeT = TypeVar("ShapeT")


@dataclass(frozen=True, slots=True)
class Keys:
    id: str
    secret: str = field(repr=False)


class RefusedCall(CloudError):
    """ECS takes the request for wrong; `code` is its own word for why."""

    def __init__(self, code: str) -> None:
        super().__init__(f"refuses the request ({code})", refused=True)
        self.code = code


class _Failure(msgspec.Struct, rename="pascal"):
    code: str


async def call(
    http: Http, host: str, keys: Keys, action: str, parameters: Mapping[str, str], shape: type[ShapeT]
) -> ShapeT:
    """Raises RefusedCall and CloudError."""
    answer = await http.request(
        "GET",
        f"https://{host}/",
        headers=lambda: signed(host, keys, action, parameters, datetime.now(UTC), secrets.token_hex(16)),
        query=parameters,
        throttled=_throttled,
    )
    if answer.status == 200:
        return answer.json(shape)
    code = _code(answer)
    if not code:
        raise CloudError(f"answered {answer.status}")
    raise RefusedCall(code)


def _throttled(answer: Answer) -> str:
    code = _code(answer)
    return code if code.startswith("Throttling") else ""


def _code(answer: Answer) -> str:
    """Alibaba's word for what is wrong; empty where the answer has none."""
    try:
        code = msgspec.json.decode(answer.body, type=_Failure).code
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return code if _CODE.fullmatch(code) else ""


def signed(
    host: str,
    keys: Keys,
    action: str,
    parameters: Mapping[str, str],
    now: datetime,
    nonce: str,
    method: str = "GET",
) -> dict[str, str]:
    """The headers of a call without a body. `nonce` serves one request only: sent again, it is refused."""
    headers = {
        "host": host,
        "x-acs-action": action,
        "x-acs-content-sha256": _EMPTY,
        "x-acs-date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "x-acs-signature-nonce": nonce,
        "x-acs-version": VERSION,
    }
    names = ";".join(headers)
    canonical = "\n".join(
        [
            method,
            "/",
            "&".join(f"{_quoted(name)}={_quoted(parameters[name])}" for name in sorted(parameters)),
            *(f"{name}:{value}" for name, value in headers.items()),
            "",
            names,
            _EMPTY,
        ]
    )
    text = f"ACS3-HMAC-SHA256\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(keys.secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    authorization = f"ACS3-HMAC-SHA256 Credential={keys.id},SignedHeaders={names},Signature={signature}"
    return {**headers, "Authorization": authorization}


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")
