"""What a browser sends with a form."""

from __future__ import annotations

from urllib.parse import parse_qsl

from aiohttp import web

from common.server.web_server import read_body
from master.apiserver.problem import ProblemError
from master.apiserver.reading import field

MAX_FORM = 64 * 1024
MAX_FIELDS = 128


async def read_form(request: web.Request) -> dict[str, str]:
    """Raises ProblemError and RefusedError. Of a field that is sent twice, the last counts."""
    kind = field(request, "Content-Type").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ProblemError(415, "a form is sent as application/x-www-form-urlencoded")
    raw = await read_body(request, MAX_FORM)
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except (ValueError, UnicodeDecodeError):
        raise ProblemError(400, "the form is malformed") from None
    return dict(pairs)
