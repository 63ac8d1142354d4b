from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.apiserver.conditions import Preconditions, tag_of

VERSION = "0123abc"
TAG = tag_of(VERSION, b"shown")
OTHER_USE = tag_of(VERSION, b"the limits are the same")


@pytest.mark.parametrize(
    ("if_match", "goes_on"),
    [
        ("*", True),
        (f'"{TAG}"', True),
        (f'"{OTHER_USE}"', True),
        (f'"{TAG}.gz"', True),
        (f'"{VERSION}"', True),
        (f'"a", "{TAG}"', True),
        (f'W/"x", "{TAG}"', True),
        (f'W/"{TAG}"', False),
        (TAG, False),
        ('"a"', False),
        ("", False),
    ],
)
def test_a_write_goes_on_where_what_it_changes_is_as_it_was_read(if_match: str, goes_on: bool) -> None:
    assert Preconditions(if_match=if_match).allow_write(VERSION) is goes_on
    assert not Preconditions(if_match=if_match).allow_write(None), "nothing is there"


@pytest.mark.parametrize(
    ("if_none_match", "goes_on"),
    [("*", False), (f'"{TAG}"', False), (f'W/"{OTHER_USE}"', False), ('"a", "b"', True), ("", True)],
)
def test_a_write_that_must_find_nothing_stops_where_something_is(if_none_match: str, goes_on: bool) -> None:
    """RFC 9110, section 13.1.2: with `*` only what does not exist is made."""
    assert Preconditions(if_none_match=if_none_match).allow_write(VERSION) is goes_on
    assert Preconditions(if_none_match=if_none_match).allow_write(None)
    assert not Preconditions(if_match='"a"', if_none_match='"a"').allow_write(VERSION), "both must hold"


@pytest.mark.parametrize(
    ("if_none_match", "has"),
    [
        ("*", True),
        (f'"{TAG}"', True),
        (f'W/"{TAG}"', True),
        (f'"{TAG}.gz"', True),
        (f'"a" , "{TAG}"', True),
        (f'"{OTHER_USE}"', False),
        (f'"{VERSION}"', False),
        (TAG, False),
    ],
)
def test_a_reader_has_already_only_what_is_the_same_as_a_whole(if_none_match: str, has: bool) -> None:
    """Otherwise it would go on to show the use of an hour ago."""
    assert (Preconditions(if_none_match=if_none_match).had_already(TAG) is not None) is has


def test_without_conditions_all_goes_on() -> None:
    assert Preconditions().allow_write(None) and Preconditions().allow_write(VERSION)
    assert Preconditions().had_already(TAG) is None


@given(st.text(max_size=40), st.binary(max_size=8))
def test_any_field_is_read(field: str, content: bytes) -> None:
    found = Preconditions(field, field)
    tag = tag_of("", content)
    assert found.had_already(tag) in (None, tag, f"{tag}.gz")
    assert found.allow_write(VERSION) in (True, False)
