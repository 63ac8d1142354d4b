"""Large answers are sent compressed to whoever takes gzip. Pure."""

from __future__ import annotations

import gzip
import re

LARGE = 32 * 1024
"""Bytes from which on an answer is compressed: less would cost more time than it saves."""

LEVEL = 1  # as an API server of Kubernetes has it: the next ones take several times as long for little

_CODING = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*(?:;\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*)?", re.IGNORECASE)
MOST_CODINGS = 16


def takes_gzip(accept_encoding: str) -> bool:
    """RFC 9110, section 12.5.3. What is malformed is not taken."""
    weights: dict[str, float] = {}
    for part in accept_encoding.split(",", MOST_CODINGS)[:MOST_CODINGS]:
        coding = _CODING.fullmatch(part)
        if coding is not None:
            weights.setdefault(coding[1].lower(), float(coding[2] or 1))
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


def compressed(content: bytes) -> bytes:
    """The same for the same content."""
    return gzip.compress(content, LEVEL, mtime=0)
