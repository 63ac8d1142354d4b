"""Where a browser may be sent. Pure."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

_PREFIX = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)*")
_PATH = re.compile(r"/(?![/\\])[A-Za-z0-9._~!$&'()*+,;=:@%/?-]{0,1000}")


def safe_path(wanted: str) -> str:
    """A path of this page, without its prefix; the first page for everything else. Browsers read `//host` and `/\\host`
    as another host, drop tabs and line ends before they look, and go up from the prefix by `..` and `%2e%2e`."""
    names = wanted.partition("?")[0].split("/")
    if not _PATH.fullmatch(wanted) or any(unquote(name) in (".", "..") for name in names):
        return "/"
    parts = urlsplit(wanted)
    return wanted if not parts.scheme and not parts.netloc else "/"


def prefix_of(url: str) -> str:
    """Of the address under which people reach the page: "/seedquota" of https://example.com/seedquota/.

    Raises ValueError. What is in a path here is in cookies and in headers, too."""
    prefix = urlsplit(url).path.rstrip("/")
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"the path of {url} has more than letters, digits and -._~ between slashes")
    return prefix
