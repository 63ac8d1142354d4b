"""Versions of what is shown, and what requests may ask of them (RFC 9110, sections 8.8.3 and 13). Pure.

A tag is `"VERSION.CONTENT"`. VERSION is what a write changes: of a quota its limits, not its use, which changes all the
time. It alone decides whether a write goes on. CONTENT is of all that is shown, and decides whether a reader has it
already. Where nothing can be written, there is CONTENT alone. What is sent compressed has `.gz` at the end.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

COMPRESSED = ".gz"

_TAG = re.compile(r'(W/)?"([!#-~\x80-\xff]*)"')


class Preconditions(msgspec.Struct, frozen=True):
    """As they came; None: none did."""

    if_match: str | None = None
    if_none_match: str | None = None

    def allow_write(self, version: str | None) -> bool:
        """`version` of what is there, if something is. A weak tag never matches in If-Match."""
        if self.if_match is not None and not _names(self.if_match, version, weak=False):
            return False
        return self.if_none_match is None or not _names(self.if_none_match, version, weak=True)

    def had_already(self, tag: str) -> str | None:
        """The tag with which a reader got this before, compressed or not; None: it needs the answer. A cache finds by
        it which of the two it has."""
        if self.if_none_match is None:
            return None
        if self.if_none_match.strip() == "*":
            return tag
        known = (each for _, each in _TAG.findall(self.if_none_match))
        return next((each for each in known if each.removesuffix(COMPRESSED) == tag), None)


def tag_of(version: str, content: bytes) -> str:
    """Without quotes."""
    shown = hashlib.sha256(content).hexdigest()[:16]
    return f"{version}.{shown}" if version else shown


def _names(field: str, version: str | None, *, weak: bool) -> bool:
    if version is None or field.strip() == "*":
        return version is not None
    return any(tag.partition(".")[0] == version for mark, tag in _TAG.findall(field) if weak or not mark)
