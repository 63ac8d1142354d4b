"""How a command ends: 0 if it is done, else by one of these. A message says what to do."""

from __future__ import annotations

import msgspec

DONE = 0
STALE = 3
"""What was printed may be out of date, or is not all."""


class Printed(msgspec.Struct, frozen=True):
    """The answer of a command that ends with another status although it is done."""

    text: str
    status: int


class Failed(Exception):
    status = 1


class Denied(Failed):
    """It would break a rule, such as removing what is in use. 2 is also what means: it does not fit."""

    status = 2
