"""What is read from a ServiceAccount's token, and what is made of the API server's answer to a request for one."""

from __future__ import annotations

import base64
import json

import pytest

from common.kube.client.errors import Malformed
from common.kube.client.service_account import Token, read, request_token

CLAIMS = {"sub": "system:serviceaccount:ns:account", "iat": 1000, "exp": 2000, "iss": "https://x"}


def jwt(claims: object) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "ES256"}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "signature"])


def test_a_token_tells_whose_it_is_and_when_it_ends() -> None:
    assert read(jwt(CLAIMS)) == Token("ns", "account", 1000, 2000)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "opaque",
        "a.b.c",
        "a.%%%.c",
        jwt([]),
        jwt({**CLAIMS, "sub": "ann"}),
        jwt({**CLAIMS, "sub": "system:serviceaccount:ns"}),
        jwt({"sub": CLAIMS["sub"], "iat": 1000}),
        jwt({**CLAIMS, "exp": 1000}),
        jwt({**CLAIMS, "exp": "soon"}),
    ],
)
def test_what_is_no_token_of_a_service_account_that_ends_is_not_one(token: str) -> None:
    assert read(token) is None


def test_the_next_token_is_due_when_half_of_the_life_has_passed() -> None:
    token = Token("ns", "account", 1000, 2000)
    assert [token.due(now) for now in (0, 1000, 1499, 1500, 1999, 3000)] == [False, False, False, True, True, True]


class Answering:
    name = "seed"

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def request(self, method: str, path: str, body: bytes, **_options: object) -> bytes:
        self.asked = method, path, json.loads(body)["spec"]
        return self.content


async def test_a_token_is_requested_for_the_audiences_alone() -> None:
    api = Answering(b'{"status": {"token": "t"}}')
    assert await request_token(api, "ns", "account", seconds=600, audiences=["us"]) == "t"  # type: ignore[arg-type]
    path = "/api/v1/namespaces/ns/serviceaccounts/account/token"
    assert api.asked == ("POST", path, {"expirationSeconds": 600, "audiences": ["us"]})


@pytest.mark.parametrize("content", [b"", b"{}", b'{"status": {}}', b'{"status": {"token": 1}}'])
async def test_an_answer_without_a_token_is_an_error(content: bytes) -> None:
    with pytest.raises(Malformed):
        await request_token(Answering(content), "ns", "account", seconds=600)  # type: ignore[arg-type]
