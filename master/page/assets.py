"""The files that pages name: read once, under an address that changes with their content. No path is ever opened for a
request."""

from __future__ import annotations

import gzip
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_DIRECTORY = Path(__file__).with_name("static")
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FILES = ("page.css", "page.js", "icon.svg", "vendor/htmx.min.js", "vendor/idiomorph-ext.min.js")


class Asset(NamedTuple):
    name: str
    content: bytes
    compressed: bytes
    media_type: str
    digest: str

    @property
    def path(self) -> str:
        return f"/assets/{self.digest}/{self.name}"


@lru_cache(maxsize=1)
def assets() -> dict[str, Asset]:
    """By name, which is that of the file."""
    return {asset.name: asset for asset in map(_read, _FILES)}


def _read(file: str) -> Asset:
    path = _DIRECTORY / file
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return Asset(path.name, content, gzip.compress(content, mtime=0), _TYPES[path.suffix], digest)
