"""The pages, mounted in the application of the HTTP API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from aiohttp import web

from common.server.access_reviews import User
from common.server.web_server import ask_later
from master.apiserver.app import API
from master.apiserver.encoding import takes_gzip
from master.apiserver.problem import ProblemError
from master.apiserver.reading import field
from master.page import editing, fitting
from master.page.answering import Answering
from master.page.assets import assets
from master.page.forms import read_form
from master.page.handlers import Asked, Handler, Pages, PastUse, Shown
from master.page.lookups import Lookups
from master.page.oidc import Provider
from master.page.rendering import HEADERS
from master.page.session import Sealer
from master.page.sign_in import SignIn

_NAME = "{name:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?}"
CALLBACK = "/sign-in/oidc/callback"
_YEAR = 365 * 86400  # seconds: the address of a file changes with it


class Page:
    """`mount` is for an App of the HTTP API. `sealer`: returns None while there is no key yet. `prefix`: of all
    addresses, where people reach the page below a path. `history`: None: none is kept.
    `provider`: None: people sign in with tokens alone."""

    def __init__(
        self,
        sealer: Callable[[], Sealer | None],
        prefix: str = "",
        history: PastUse | None = None,
        provider: Provider | None = None,
    ) -> None:
        self._history = history
        self._answering = Answering(sealer, prefix)
        self._sign_in = SignIn(self._answering, provider)

    def mount(self, application: web.Application) -> None:
        api, router = application[API], application.router
        api.session = self._token
        pages = Pages(api.caches, api.allocations, api.rights, self._history)
        lookups = Lookups()
        shown: Mapping[str, Handler] = {
            "/": pages.overview,
            "/start": pages.start,
            "/quotas": pages.quotas,
            f"/quotas/{_NAME}": pages.quota,
            f"/projects/{_NAME}": pages.project,
            f"/organizations/{_NAME}": pages.organization,
            f"/projects/{_NAME}/machinetypes": fitting.machine_types,
            f"/projects/{_NAME}/refusals": partial(lookups.refusals, "project"),
            f"/quotas/{_NAME}/clusters": lookups.quota_clusters,
            f"/quotas/{_NAME}/refusals": partial(lookups.refusals, "quota"),
            f"/organizations/{_NAME}/allocations": lookups.allocations,
            "/decisions": lookups.decision,
            "/seeds": pages.seeds,
            f"/seeds/{_NAME}": pages.seed,
            "/settings": pages.settings,
        }
        guarded = self._answering.guarded
        for path, handler in shown.items():
            router.add_get(path, guarded(partial(self._page, handler)))
        kinds = "/{kind:quotas|projects|organizations|seeds|settings}"
        router.add_get(f"{kinds}/{_NAME}/yaml", guarded(partial(self._yaml, pages)))
        for path, form in (
            (f"/projects/{_NAME}/fits", partial(fitting.form, "project")),
            (f"/quotas/{_NAME}/fits", partial(fitting.form, "quota")),
            (f"/quotas/{_NAME}/edit", editing.limits),
            (f"/quotas/{_NAME}/raise", editing.raises),
            ("/settings/{kind:project|organization}/edit", editing.default),
            (f"/seeds/{_NAME}/edit", editing.seed_state),
        ):
            router.add_get(path, guarded(partial(self._form, form)))
            router.add_post(path, guarded(partial(self._form, form)), expect_handler=ask_later)
        router.add_get("/open", guarded(partial(self._open, pages)))
        router.add_get("/sign-in", guarded(self._sign_in.ask))
        router.add_get("/sign-in/oidc", guarded(self._sign_in.to_provider))
        router.add_get(CALLBACK, guarded(self._sign_in.from_provider))
        router.add_post("/sign-in", guarded(self._sign_in.with_token), expect_handler=ask_later)
        router.add_post("/sign-out", guarded(self._sign_in.out), expect_handler=ask_later)
        router.add_get("/assets/{digest}/{file}", guarded(self._asset))

    def _token(self, request: web.Request) -> str | None:
        session = self._answering.session(request)
        return session.token if session is not None else None

    async def _page(self, handler: Handler, request: web.Request) -> web.Response:
        async with request.app[API].viewer(request) as user:
            return self._answering.shown(request, user, await handler(_asked(request, user)))

    async def _form(self, handler: Callable[[Asked], Awaitable[Shown | str]], request: web.Request) -> web.Response:
        """Raises ProblemError, also where the form is of another session than the browser's."""
        async with request.app[API].viewer(request) as user:
            form = await read_form(request) if request.method == "POST" else None
            if form is not None:
                session = self._answering.session(request)
                if session is None or not session.has_sent(form.get("csrf", "")):
                    raise ProblemError(403, "the form is not of this session; open the page again", code="csrf")
            shown = await handler(_asked(request, user, form))
            if isinstance(shown, str):
                return self._answering.redirect(shown)
            return self._answering.shown(request, user, shown)

    async def _yaml(self, pages: Pages, request: web.Request) -> web.Response:
        async with request.app[API].viewer(request) as user:
            text = await pages.yaml(_asked(request, user))
        return web.Response(text=text, content_type="text/plain", headers=HEADERS)

    async def _open(self, pages: Pages, request: web.Request) -> web.Response:
        async with request.app[API].viewer(request) as user:
            return self._answering.redirect(await pages.open(_asked(request, user)))

    async def _asset(self, request: web.Request) -> web.Response:
        """Of the files that there are, by name. Whoever has an old address gets the file of now, for a short time."""
        asset = assets().get(request.match_info["file"])
        if asset is None:
            raise web.HTTPNotFound
        lasting = request.match_info["digest"] == asset.digest
        headers = {
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Vary": "Accept-Encoding",
            "Cache-Control": f"public, max-age={_YEAR}, immutable" if lasting else "no-cache",
            "Content-Type": asset.media_type,
        }
        if takes_gzip(field(request, "Accept-Encoding")):
            return web.Response(body=asset.compressed, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=asset.content, headers=headers)


def _asked(request: web.Request, user: User, form: Mapping[str, str] | None = None) -> Asked:
    return Asked(user, partial(request.app[API].ask, request), request.match_info, request.query, form)
