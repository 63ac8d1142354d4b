"""JSON of API servers, however deep it is nested. Whatever is wrong with it is one kind of error.

Each value costs many times its bytes: what has too many is refused before it is decoded (bounds.py).

API servers take objects that are nested up to 10,000 deep, where users may choose fields. msgspec skips what it is not
asked for, but counts each level against Python's limit of 1,000: one such object would make a whole list unreadable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

from common.kube.client.bounds import MAX_VALUES
from common.kube.client.errors import Malformed

MAX_DEPTH = 12_000  # more than API servers take; msgspec needs less than 100 bytes of the stack for each

T = TypeVar("T")


def decode(decoder: Callable[[bytes | msgspec.Raw], T], content: bytes | msgspec.Raw, most: int = MAX_VALUES) -> T:
    """Raises msgspec.MsgspecError, also for what is nested deeper than that and for text that is not UTF-8.

    `most`: values in it, about.
    """
    if memoryview(content).nbytes > most:
        _count(bytes(content), most)
    try:
        return decoder(content)
    except RecursionError:
        return _deep(decoder, content)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None


def read(decoder: Callable[[bytes | msgspec.Raw], T], content: bytes | msgspec.Raw, what: str) -> T:
    """`decode` of an answer. Raises Malformed."""
    try:
        return decode(decoder, content)
    except msgspec.MsgspecError as error:
        raise Malformed(200, "Malformed", f"{what} cannot be read: {error}") from None


def values(content: bytes) -> int:
    """About how many there are in it."""
    return sum(map(content.count, (b",", b"[", b"{")))


def _count(content: bytes, most: int) -> None:
    if values(content) > most:
        raise msgspec.DecodeError(f"it has more than {most} values")


def _deep(decoder: Callable[[bytes | msgspec.Raw], T], content: bytes | msgspec.Raw) -> T:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, MAX_DEPTH))
    try:
        return decoder(content)
    except RecursionError:
        raise msgspec.DecodeError("JSON is nested too deep") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None
    finally:
        sys.setrecursionlimit(limit)
