"""How a name is written in a line of a ledger, which has spaces, commas and the like between its parts. Pure.

Tenants choose names: what would break the line, and what is not ASCII, is percent-encoded.
"""

from __future__ import annotations

import re
from urllib.parse import quote

_PLAIN = re.compile("[0-9A-Za-z_.~/:@+-]*")


def word(name: str) -> str:
    """`urllib.parse.unquote` is the way back. Most names are plain."""
    return name if _PLAIN.fullmatch(name) else quote(name, safe="/:@+")
