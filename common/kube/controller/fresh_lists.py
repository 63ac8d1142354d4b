"""Whoever begins to act on watch caches lists them anew: a watch can be silent for a while before that is noticed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from common.kube.client.errors import Unavailable
from common.kube.controller.reflector import Reflector


async def list_anew(reflectors: Iterable[Reflector[Any]], timeout: float) -> None:
    """Each by a list that begins after this call. `timeout` is in seconds, for all of them. Raises Unavailable."""
    until = time.monotonic() + timeout
    asked = [(reflector, reflector.relist(impatient=True)) for reflector in reflectors]
    try:
        for reflector, number in asked:
            await reflector.wait_listed(number, max(until - time.monotonic(), 0.0))
    except TimeoutError as error:
        raise Unavailable(0, "Unavailable", str(error)) from None
