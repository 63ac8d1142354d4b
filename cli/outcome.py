"""How a command ends: 0 if it is done, else by one of these. A message says what to do."""

from __future__ import annotations

DONE = 0


class Failed(Exception):
    status = 1


class Denied(Failed):
    """It would break a rule, such as removing what is in use. 2 is also what means: it does not fit."""

    status = 2
