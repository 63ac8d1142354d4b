"""A question to Prometheus about a span of time, and what of its answer is believed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import aiohttp
import msgspec

MAX_ANSWER = 4 * 2**20  # bytes
MAX_SAID = 200  # characters of an error
MAX_AMOUNT = 2.0**62  # cores or bytes

Points = dict[float, dict[str, float]]
"""By Unix time, and by resource; without one, under ""."""


class PrometheusError(Exception):
    """Why there is no answer, for people."""


class PrometheusUnreachableError(PrometheusError):
    """It answers nothing to anybody."""


class Series(NamedTuple):
    """`values`: each with its Unix time; only those of at least 0."""

    labels: Mapping[str, str]
    values: Sequence[tuple[float, float]]


class _Series(msgspec.Struct):
    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


class _Matrix(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: list[_Series] = []


class _QueryResponse(msgspec.Struct, rename="camel"):
    status: str
    data: _Matrix = msgspec.field(default_factory=_Matrix)
    error: str = ""


async def query_range(
    session: aiohttp.ClientSession, url: str, query: str, start: float, end: float, step: float
) -> list[Series]:
    """`url`: of its start page. Times are Unix times, `step` is in seconds. Raises PrometheusError."""
    wanted = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
    return read(await _get(session, f"{url.rstrip('/')}/api/v1/query_range", wanted))


def read(content: bytes) -> list[Series]:
    """Raises PrometheusError."""
    try:
        answer = msgspec.json.decode(content, type=_QueryResponse)
        if answer.status != "success":
            raise PrometheusError(f"Prometheus refuses the question: {answer.error[:MAX_SAID]}")
        return [
            Series(each.metric, [(time, float(value)) for time, value in each.values if _is_amount(float(value))])
            for each in answer.data.result
        ]
    except (ValueError, RecursionError) as error:
        raise PrometheusError(f"Prometheus answers what cannot be read: {error}") from None


def by_resource(found: Iterable[Series]) -> Points:
    points: Points = {}
    for series in found:
        for time, amount in series.values:
            points.setdefault(time, {})[series.labels.get("resource", "")] = amount
    return points


def _is_amount(value: float) -> bool:
    return math.isfinite(value) and 0 <= value <= MAX_AMOUNT


async def _get(session: aiohttp.ClientSession, url: str, wanted: Mapping[str, str]) -> bytes:
    try:
        async with session.get(url, params=wanted, allow_redirects=False) as answer:
            content = await answer.content.read(MAX_ANSWER)
            while len(content) < MAX_ANSWER and (more := await answer.content.read(MAX_ANSWER - len(content))):
                content += more
            if not answer.content.at_eof():
                raise PrometheusError(f"Prometheus answers more than {MAX_ANSWER} bytes")
            if answer.status not in (200, 400, 422, 503):
                raise PrometheusError(
                    f"Prometheus at {url} answered {answer.status}: is that the URL of its start page?"
                )
            return content
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise PrometheusUnreachableError(f"Prometheus cannot be asked: {error or type(error).__name__}") from None
