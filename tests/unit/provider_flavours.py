"""What the clouds answer about the flavours of the examples in docs/providers.md."""

from __future__ import annotations

from seed.providers.flavour import Flavour

FLAVOURS: dict[str, Flavour] = {}
