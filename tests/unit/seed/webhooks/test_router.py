"""Which webhook answers, and for whom a token is looked at."""

from __future__ import annotations

from typing import Any

import pytest

from common.server.http_parser import Request, Response
from seed.webhooks.router import route


class Answers:
    """A webhook that tells who asked."""

    def __init__(self, caller: str | None = None) -> None:
        self.caller = caller

    async def handle(self, caller: str, _request: Request) -> Response:
        return Response(200, caller.encode())


TOKENS = {("machines", "c1"): "m1", ("stamp", "c1"): "s1", ("machines", "c2"): "m2", ("clusters", "clusters"): "c"}


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/machines/c1/m1", "c1"),
        ("/stamp/c1/s1", "c1"),
        ("/clusters/c", "clusters"),
        ("/stamp/c1/m1", None),  # of another webhook
        ("/machines/c1/s1", None),
        ("/machines/c2/m1", None),  # of another cluster
        ("/clusters/m1", None),
        ("/clusters/clusters/c", None),
        ("/machines/c1", None),
        ("/machines/c1/m1/more", None),
        ("/unheard-of/c1/m1", None),
    ],
)
async def test_a_token_opens_its_own_webhook_to_its_own_caller_alone(path: str, answer: str | None) -> None:
    endpoints: Any = {"machines": Answers(), "stamp": Answers(), "clusters": Answers("clusters")}
    handle = route(endpoints, lambda webhook, caller, token: TOKENS.get((webhook, caller)) == token)
    got = await handle(Request("POST", path, "", b"", close=False))
    assert (got.status, got.body) == ((200, answer.encode()) if answer is not None else (404, b"not found\n"))
