"""Signing in, with a token or by a provider, and signing out."""

from __future__ import annotations

import base64
import time

import msgspec
from aiohttp import web

from master.apiserver.app import API
from master.apiserver.auth import from_another_site
from master.apiserver.problem import ProblemError
from master.page.answering import Answering
from master.page.forms import read_form
from master.page.navigation import safe_path
from master.page.oidc import Attempt, Provider
from master.page.rendering import HEADERS
from master.page.session import Sealer, TooLongError

ATTEMPT = "sign-in"  # what is sealed of one by the provider that has begun ...
ATTEMPT_SECONDS = 600.0  # ... and how long it may take


class SignIn:
    """`provider`: None: there is none."""

    def __init__(self, answering: Answering, provider: Provider | None = None) -> None:
        self._answering = answering
        self._cookies = answering.cookies
        self._provider = provider

    async def ask(self, request: web.Request) -> web.Response:
        async with request.app[API].limited(request):
            return self._asked(request, safe_path(request.query.get("next", "/")))

    async def with_token(self, request: web.Request) -> web.Response:
        """Raises ProblemError."""
        api = request.app[API]
        async with api.limited(request):
            check_same_site(request)
            form = await read_form(request)
            next_path = safe_path(form.get("next", "/"))
            try:
                return await self.begin(request, form.get("token", "").strip(), next_path)
            except ProblemError as problem:
                if problem.status != 401:
                    raise
                error = "The master's API server does not know this token, or it has expired."
                return self._asked(request, next_path, error)

    async def begin(self, request: web.Request, token: str, next_path: str) -> web.Response:
        """A new session for a token that is valid. Raises ProblemError, 401 where it is not."""
        sealer = self._sealer()
        await request.app[API].identify(token, request)
        try:
            session, sealed = sealer.begin(token, expiry_of(token))
        except TooLongError:
            raise ProblemError(422, "the token is too long for a session; use one with fewer groups") from None
        response = self._answering.redirect(next_path)
        self._cookies.keep_session(response, request, sealed, session.ends - time.time())
        return response

    async def to_provider(self, request: web.Request) -> web.Response:
        """Raises ProblemError."""
        async with request.app[API].limited(request):
            url, attempt = await self._with_provider().begin(safe_path(request.query.get("next", "/")))
            response = web.Response(status=303, headers={**HEADERS, "Location": url})
            sealed = self._sealer().seal(ATTEMPT, attempt)
            self._cookies.keep(response, self._cookies.attempt, sealed, ATTEMPT_SECONDS)
            return response

    async def from_provider(self, request: web.Request) -> web.Response:
        """Raises ProblemError."""
        async with request.app[API].limited(request):
            opened = self._sealer().open(ATTEMPT, request.cookies.get(self._cookies.attempt, ""), ATTEMPT_SECONDS)
            next_path = "/"
            try:
                if opened is None:
                    raise ProblemError(401, "this sign-in took too long, or was begun in another browser")
                attempt = msgspec.convert(opened, Attempt)
                next_path = attempt.next
                token = await self._with_provider().end(attempt, request.query)
                response = await self.begin(request, token, next_path)
            except ProblemError as problem:
                if problem.status != 401:
                    raise
                response = self._asked(request, next_path, f"Not signed in: {problem}.")
            self._cookies.remove(response, self._cookies.attempt)
            return response

    async def out(self, request: web.Request) -> web.Response:
        """Raises ProblemError."""
        async with request.app[API].limited(request):
            check_same_site(request)
            session = self._answering.session(request)
            form = await read_form(request)
            if session is not None and not session.has_sent(form.get("csrf", "")):
                raise ProblemError(403, "the form is not of this session; go back and try again", code="csrf")
            response = self._answering.redirect("/sign-in")
            self._answering.forget(response, request)
            return response

    def _sealer(self) -> Sealer:
        """Raises ProblemError."""
        sealer = self._answering.sealer()
        if sealer is None:
            raise ProblemError(503, "the key of sessions is not there yet; try again in a moment")
        return sealer

    def _with_provider(self) -> Provider:
        """Raises ProblemError."""
        if self._provider is None:
            raise ProblemError(404, "no provider is set; sign in with a token")
        return self._provider

    def _asked(self, request: web.Request, next_path: str, error: str = "") -> web.Response:
        values: dict[str, object] = {
            "next": next_path,
            "error": error,
            "oidc": self._provider.client.name if self._provider is not None else "",
        }
        return self._answering.html(request, "sign_in.html", "Sign in", values, status=401 if error else 200)


def check_same_site(request: web.Request) -> None:
    """Raises ProblemError. Whoever is not signed in has no secret that a form could bring back."""
    if from_another_site(request):
        raise ProblemError(403, "a page of another site sent it", code="cross_site")


class _Claims(msgspec.Struct):
    exp: float | None = None


def expiry_of(token: str) -> float | None:
    """When a JWT says that it ends, in Unix time. Nothing else in it is believed."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        padded = parts[1] + "=" * (-len(parts[1]) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Claims).exp
    except (ValueError, msgspec.MsgspecError):
        return None
