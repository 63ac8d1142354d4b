"""Errors that nobody expects of what an outside sends, for tests that see that only one of many suffers from them."""

from __future__ import annotations

import pytest

ODD = (
    UnicodeDecodeError("utf-8", b"\xda", 0, 1, "invalid continuation byte"),
    RecursionError("maximum recursion depth exceeded"),
    KeyError("metadata"),
    AssertionError("impossible"),
    OverflowError("too large"),
    MemoryError(),
)

odd_errors = pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
