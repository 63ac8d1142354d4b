"""One object that a tenant nested deep must not hide the others from us."""

from __future__ import annotations

import sys
from contextlib import suppress

import msgspec
import pytest

from common.kube.client import deep_json
from common.kube.client.errors import LONGEST_RETRY_AFTER, Invalid, Malformed, Unavailable, api_error
from common.kube.client.meta import Object
from common.kube.client.pages import read_page
from common.kube.client.resource import Broken, Resource

THINGS = Resource("", "v1", "things", "Thing", namespaced=True, type=Object)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def thing(name: str, depth: int = 1, wrong: bytes = b"{}") -> bytes:
    return b'{"metadata": {"name": "%b", "labels": %b}, "status": %b}' % (name.encode(), wrong, nested(depth))


@pytest.mark.parametrize("depth", [1_500, 9_990])
async def test_a_list_with_an_object_as_deep_as_api_servers_take_is_read(depth: int) -> None:
    found: list[Object] = []
    broken: list[Broken] = []
    content = b'{"metadata": {}, "items": [%b, %b]}' % (thing("deep", depth), thing("b"))
    await read_page(THINGS, content, 500, found, broken)
    assert [one.metadata.name for one in found] == ["deep", "b"]
    assert broken == []


async def test_a_deep_object_that_is_malformed_as_well_hides_no_other() -> None:
    found: list[Object] = []
    broken: list[Broken] = []
    content = b'{"metadata": {}, "items": [%b, %b]}' % (thing("deep", 1_500, b"7"), thing("b"))
    await read_page(THINGS, content, 500, found, broken)
    assert [one.metadata.name for one in found] == ["b"]
    assert len(broken) == 1


def test_what_is_deeper_than_any_api_server_takes_is_malformed() -> None:
    with pytest.raises(Malformed, match="too deep"):
        THINGS.decode(thing("deep", 100_000))
    with pytest.raises(msgspec.MsgspecError):
        deep_json.decode(msgspec.json.decode, nested(100_000))


def test_python_s_own_limit_is_as_before() -> None:
    before = sys.getrecursionlimit()
    for depth in (1_500, 100_000):
        with suppress(Malformed):
            THINGS.decode(thing("deep", depth))
        assert sys.getrecursionlimit() == before


def test_an_error_in_deep_json_is_an_api_error() -> None:
    assert isinstance(api_error(503, b'{"extra": %b}' % nested(5_000), "get things"), Unavailable)


def test_an_error_is_bounded() -> None:
    long = "x" * 1_000_000
    causes = ",".join([f'{{"message": "{long}", "reason": "{long}", "field": "{long}"}}'] * 3 + ["{}"] * 1000)
    details = f'{{"retryAfterSeconds": 1e300, "causes": [{causes}]}}'
    text = f'{{"message": "{long}", "reason": "{long}", "code": {"9" * 40}, "details": {details}}}'
    error = api_error(503, text.encode(), "get things")
    assert len(error.message) < 5000
    assert len(error.causes) < 100
    assert len(error.reason) < 300
    assert max(len(cause.reason) + len(cause.message) + len(cause.field) for cause in error.causes) < 100_000
    assert error.status == 503
    assert api_error(500, b'{"code": 200, "reason": "x"}', "get things").status == 500
    assert error.retry_after == LONGEST_RETRY_AFTER
    assert api_error(503, b"", "get things", "9" * 400).retry_after == LONGEST_RETRY_AFTER
    many = api_error(422, b'{"details": {"causes": [%b]}}' % b",".join([b"{}"] * 20_000), "get things")
    assert isinstance(many, Invalid)
    assert not many.causes, "they are not decoded"


@pytest.mark.parametrize("wrong", [b"\xda", b"\xff\xfe"])
async def test_text_that_is_no_utf_8_is_malformed_wherever_it_stands(wrong: bytes) -> None:
    """Also beside what is nested so deep that it is read a second time."""
    with pytest.raises(Malformed, match="Thing cannot be read"):
        THINGS.decode(thing("X").replace(b"X", wrong))
    broken: list[Broken] = []
    found: list[Object] = []
    bad = thing("X", 1_500).replace(b"X", wrong)
    await read_page(THINGS, b'{"metadata": {}, "items": [%b, %b]}' % (bad, thing("b")), 500, found, broken)
    assert [one.metadata.name for one in found] == ["b"]
    assert len(broken) == 1
    with pytest.raises(msgspec.MsgspecError):
        await read_page(THINGS, b'{"metadata": {"continue": "%b"}, "items": []}' % wrong, 500, found, broken)
    with pytest.raises(msgspec.MsgspecError):
        await read_page(
            THINGS, b'{"metadata": {"continue": "%b"}, "items": [%b]}' % (wrong, thing("b", 1_500)), 500, found, broken
        )
