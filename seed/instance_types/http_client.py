"""Requests to clouds: bounded in time and size, tried again where that helps, over verified TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt
from tenacity.stop import stop_base
from tenacity.wait import wait_exponential_jitter

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Malformed, NotFound
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.kube.client.tls import of_the_system, verifying
from common.kube.client.transport import BUFFER, IDENTITY, BoundedConnector, RefusedAnswer, close_all
from seed.providers.flavour import MAX_BODY, MAX_BODY_OF_ANY_HOST, Answer, CloudError, Headers, is_nearby, only_429

ATTEMPTS = 4
FIRST_PAUSE = 0.1  # seconds, then doubled, with jitter
LONGEST_PAUSE = 5.0
CONNECT_SECONDS = 5.0
ONE_SECONDS = 10.0  # for one attempt

_NOTHING: Mapping[str, str] = MappingProxyType({})
ObjectT = TypeVar("ObjectT", bound=Object)
T = TypeVar("T")


class InvalidBundle(Exception):
    """Says what is wrong with a file of authorities."""


def trusting(ca_file: Path | None) -> ssl.SSLContext:
    """The system's authorities and those of the file. Raises InvalidBundle."""
    if ca_file is None:
        return of_the_system()
    context = verifying()
    try:
        context.load_verify_locations(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidBundle(f"{ca_file}: {error}") from error
    return context


class Transport:
    """The connections of one program; `within` makes what one fetch may use. `close()` it."""

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        """`ssl_context` decides whom to trust, instead of the system's authorities."""
        self._ssl_context = ssl_context if ssl_context is not None else of_the_system()
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None
        self._nearby: aiohttp.ClientSession | None = None  # what is on this machine is asked without a proxy

    def within(self, deadline: float) -> BoundedHttp:
        """Requests that end by `deadline`, on the event loop's clock."""
        if self._session is None or self._nearby is None:
            self._session, self._nearby = self._connected(proxied=True), self._connected(proxied=False)
        return BoundedHttp(self._session, self._nearby, deadline)

    async def close(self) -> None:
        await close_all(session for session in (self._session, self._nearby) if session is not None)

    def _connected(self, *, proxied: bool) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=BoundedConnector(
                ssl=self._ssl_context,
                resolver=self._resolver,
                limit=0,  # one user cluster's lookups have a bound (cache.MAX_FETCHES), and never wait for another's
            ),
            trust_env=proxied,  # HTTPS_PROXY, NO_PROXY
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "seedquota", **IDENTITY},
            auto_decompress=False,
            read_bufsize=BUFFER,
        )


class BoundedHttp:
    """Fits `seed.providers.flavour.Http`. `trouble`: why something must be asked again, until it is answered."""

    def __init__(self, session: aiohttp.ClientSession, nearby: aiohttp.ClientSession, deadline: float) -> None:
        self._session = session
        self._nearby = nearby
        self._deadline = deadline
        self.trouble = ""

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = _NOTHING,
        query: Mapping[str, str] = _NOTHING,
        body: bytes = b"",
        ca: str = "",
        timeout: float = ONE_SECONDS,
        attempts: int = ATTEMPTS,
        throttled: Callable[[Answer], str] = only_429,
        max_body: int = MAX_BODY,
    ) -> Answer:
        try:
            parts = urlsplit(url)
        except ValueError:
            raise _no_request() from None
        if parts.scheme != "https" and not (parts.scheme == "http" and is_nearby(parts.hostname or "")):
            raise CloudError("is to be asked without TLS, which is not done", refused=True)
        context = _trusting(ca) if ca else None

        async def once() -> Answer:
            made = headers() if callable(headers) else headers
            answer = await self._once(method, url, made, query, body, context, timeout, max_body)
            word = throttled(answer) if answer.status >= 400 else ""
            if word:
                raise CloudError(f"answers too many requests ({word})", retry_after=_retry_after(answer))
            return _judged(answer)

        return await self._again(once, attempts)

    async def _again(self, once: Callable[[], Awaitable[T]], attempts: int) -> T:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, CloudError) and not error.refused),
            wait=_pause,
            stop=stop_after_attempt(attempts) | _Late(self._deadline),
            reraise=True,
        ):
            with attempt:
                try:
                    answer = await once()
                except CloudError as error:
                    self.trouble = str(error)
                    raise
                self.trouble = ""
                return answer
        raise AssertionError("the last attempt returns or raises")

    def _left(self, most: float) -> float:
        """Seconds for one attempt."""
        seconds = min(most, self._deadline - asyncio.get_running_loop().time())
        if seconds <= 0:
            raise CloudError("did not answer in time")
        return seconds

    async def _once(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        body: bytes,
        context: ssl.SSLContext | None,
        timeout: float,
        max_body: int,
    ) -> Answer:
        seconds = self._left(timeout)
        session = self._session if url.startswith("https:") else self._nearby
        try:
            # Not `total` of aiohttp: see common/kube/client/connection.py.
            async with (
                asyncio.timeout(seconds),
                session.request(
                    method,
                    url,
                    params=query or None,
                    headers=headers,
                    data=body or None,
                    ssl=context if context is not None else True,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                ) as response,
            ):
                return Answer(
                    response.status,
                    {name.lower(): value for name, value in response.headers.items()},
                    await _read(response, max_body),
                )
        except TimeoutError:
            raise CloudError(f"did not answer within {seconds:.1f} s") from None
        except aiohttp.InvalidURL:
            raise _no_request() from None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError):
            raise CloudError("does not prove by its certificate who it is") from None
        except RefusedAnswer as error:
            raise CloudError(f"answers what is not read: {error}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise CloudError(f"cannot be reached ({type(error).__name__})") from None
        except ValueError:  # a host or a header that no request can have
            raise _no_request() from None

    async def kubernetes(
        self, kubeconfig: str, resource: Resource[ObjectT], name: str, namespace: str | None = None
    ) -> ObjectT | None:
        try:
            cluster = await Cluster.from_kubeconfig(
                kubeconfig, name="infra", timeout=ONE_SECONDS, max_body=MAX_BODY_OF_ANY_HOST
            )
        except InvalidKubeconfig as error:
            raise CloudError(f"cannot be asked: kubeconfig: {error}", refused=True) from error
        try:
            return await self._again(lambda: self._object(cluster, resource, name, namespace), ATTEMPTS)
        finally:
            await cluster.close()

    async def _object(
        self, cluster: Cluster, resource: Resource[ObjectT], name: str, namespace: str | None
    ) -> ObjectT | None:
        seconds = self._left(ONE_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                return await cluster.get(resource, name, namespace)
        except NotFound:
            return None
        except TimeoutError:
            raise CloudError(f"did not answer within {seconds:.1f} s") from None
        except Malformed as error:
            raise CloudError("answers what cannot be read") from error
        except ApiError as error:
            if error.status in (401, 403):
                raise CloudError(f"refuses these credentials ({error.status})", refused=True) from error
            if 300 <= error.status < 400:
                raise _moved(error.status) from error
            if error.status == 429:
                raise CloudError("answers too many requests (429)", retry_after=error.retry_after) from error
            why = f"answered {error.status}" if error.status else "cannot be reached"
            raise CloudError(why, retry_after=error.retry_after) from error


class _Late(stop_base):
    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    def __call__(self, retry_state: RetryCallState) -> bool:
        return asyncio.get_running_loop().time() + retry_state.upcoming_sleep >= self._deadline


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(2**16):
        body += chunk
        if len(body) > most:
            raise CloudError(f"answers more than {most // 2**20} MiB")
    return bytes(body)


def _judged(answer: Answer) -> Answer:
    if answer.status in (401, 403):
        raise CloudError(f"refuses these credentials ({answer.status})", refused=True)
    if answer.status == 429:
        raise CloudError("answers too many requests (429)", retry_after=_retry_after(answer))
    if answer.status >= 500:
        raise CloudError(f"answered {answer.status}", retry_after=_retry_after(answer))
    if 300 <= answer.status < 400:
        raise _moved(answer.status)
    return answer


def _no_request() -> CloudError:
    return CloudError("has an address or credentials that no request can have", refused=True)


def _moved(status: int) -> CloudError:
    return CloudError(f"answered {status}: it moved elsewhere", refused=True)


def _retry_after(answer: Answer) -> float | None:
    """Seconds. A date is read by the cloud's own clock, which its answer tells."""
    text = answer.headers.get("retry-after", "")
    if text.isdecimal():
        return float(text) if len(text) < 7 else None
    try:
        until, now = (parsedate_to_datetime(date) for date in (text, answer.headers.get("date", "")))
        return max((until - now).total_seconds(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None


_doubling = wait_exponential_jitter(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE, jitter=FIRST_PAUSE)


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.retry_after if isinstance(error, CloudError) else None
    return max(asked or 0.0, _doubling(state))


@lru_cache(maxsize=64)
def _trusting(ca: str) -> ssl.SSLContext:
    try:
        return verifying(ca)
    except (ssl.SSLError, ValueError):
        raise CloudError("cannot be asked: its CA bundle cannot be read", refused=True) from None
