"""The cookies of the page: what they are called, and where browsers send them."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

PIECE = 3500  # characters of a cookie: browsers keep 4,096 with name and attributes
PIECES = 2  # aiohttp reads 8,190 bytes of a header


class Cookies:
    """`prefix`: of all addresses. Without one, browsers take these cookies from no other host. Below a path that is not
    possible; there they go to no other path instead: another application, or another SeedQuota, does not get them."""

    def __init__(self, prefix: str = "") -> None:
        self._path = prefix or "/"
        kind = "__Secure-" if prefix else "__Host-"
        self.session = f"{kind}seedquota"
        self.attempt = f"{kind}seedquota-sign-in"  # a sign-in by the provider that has begun

    def session_of(self, cookies: Mapping[str, str]) -> str:
        """Sealed, as it was kept; empty: there is none."""
        return "".join(cookies.get(name, "") for name in self._pieces(""))

    def keep_session(self, response: web.Response, request: web.Request, sealed: str, seconds: float) -> None:
        for name, value in self._pieces(sealed).items():
            if value:
                self.keep(response, name, value, seconds)
            elif name in request.cookies:
                self.remove(response, name)

    def keep(self, response: web.Response, name: str, value: str, seconds: float) -> None:
        response.set_cookie(
            name, value, max_age=int(seconds), path=self._path, secure=True, httponly=True, samesite="Lax"
        )

    def remove(self, response: web.Response, name: str) -> None:
        response.del_cookie(name, path=self._path, secure=True, httponly=True, samesite="Lax")

    def _pieces(self, sealed: str) -> dict[str, str]:
        """By name; an empty one is to be removed."""
        return {f"{self.session}{n or ''}": sealed[n * PIECE : (n + 1) * PIECE] for n in range(PIECES)}
