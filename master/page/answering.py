"""From what a page shows to the answer of a browser's request, and from what went wrong to words on a page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote

from aiohttp import web

from common.runtime.metrics import build_version
from common.server.access_reviews import User
from master.apiserver.app import API
from master.apiserver.problem import ProblemError
from master.page.cookies import Cookies
from master.page.handlers import Shown
from master.page.rendering import HEADERS, Renderer
from master.page.session import Sealer, Session

SECONDS = 15.0  # for one page

_TITLES = {
    400: "Not understood",
    403: "You may not do this",
    404: "Not found",
    409: "Not done",
    412: "Changed meanwhile",
    413: "Too large",
    422: "Not valid",
    429: "Too many requests",
    503: "Not available now",
}

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Viewer(NamedTuple):
    """As templates have it. `csrf` and `ends` are empty for whoever came without a session, with a certificate."""

    username: str
    csrf: str
    ends: str


class Answering:
    """`sealer`: returns None while there is no key yet."""

    def __init__(self, sealer: Callable[[], Sealer | None], prefix: str) -> None:
        self.sealer = sealer
        self.prefix = prefix
        self.cookies = Cookies(prefix)
        self._renderer = Renderer(prefix)

    def session(self, request: web.Request) -> Session | None:
        sealer = self.sealer()
        return sealer.session(self.cookies.session_of(request.cookies)) if sealer is not None else None

    def guarded(self, handle: Handle) -> Handle:
        """Whoever is not signed in is sent to the page for that; what is wrong becomes a page, too."""

        async def answer(request: web.Request) -> web.StreamResponse:
            api = request.app[API]
            try:
                async with asyncio.timeout(SECONDS):
                    return await handle(request)
            except TimeoutError:
                problem = ProblemError(503, f"not answered within {SECONDS:g} s")
            except Exception as error:  # noqa: BLE001 (the outermost edge of a page; `problem` logs it)
                problem = api.problem(request, error)
            if problem.status == 401:
                return self._to_sign_in(request)
            return self.html(request, "error.html", title_of(problem), {"detail": str(problem)}, status=problem.status)

        return answer

    def shown(self, request: web.Request, user: User, shown: Shown) -> web.Response:
        values = {**shown.values, "command": shown.command, "call": shown.call, "yaml": shown.yaml}
        values |= {"events": shown.events, "about": shown.about}
        return self.html(request, shown.template, shown.title, values, viewer=self._viewer(request, user))

    def html(
        self,
        request: web.Request,
        template: str,
        title: str,
        values: dict[str, object],
        *,
        viewer: Viewer | None = None,
        status: int = 200,
    ) -> web.Response:
        usual = {
            "viewer": viewer,
            "title": title,
            "here": request.raw_path,
            "active": f"/{request.path.split('/')[1]}",
            "events": "",
            "about": "",
            "version": build_version(),
            "command": "",
            "call": "",
            "yaml": "",
        }
        text = self._renderer.html(template, **(usual | values))
        return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)

    def redirect(self, path: str) -> web.Response:
        """After a form, and to where something else is: by GET."""
        return web.Response(status=303, headers={**HEADERS, "Location": f"{self.prefix}{path}"})

    def forget(self, response: web.Response, request: web.Request) -> None:
        """Who is signed in."""
        self.cookies.keep_session(response, request, "", 0)

    def _to_sign_in(self, request: web.Request) -> web.Response:
        """A part of a page that is asked for by htmx takes the whole page along."""
        wanted = request.raw_path if request.method == "GET" else "/"
        there = f"/sign-in?next={quote(wanted, safe='')}"
        if "HX-Request" in request.headers:
            return web.Response(status=204, headers={**HEADERS, "HX-Redirect": f"{self.prefix}{there}"})
        response = self.redirect(there)
        self.forget(response, request)
        return response

    def _viewer(self, request: web.Request, user: User) -> Viewer:
        session = self.session(request)
        if session is None:
            return Viewer(user.username, "", "")
        ends = datetime.fromtimestamp(session.ends, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Viewer(user.username, session.csrf, ends)


def title_of(problem: ProblemError) -> str:
    return _TITLES.get(problem.status, "Failed")
