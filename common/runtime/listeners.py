"""Functions that are called when something happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

from common.runtime.unexpected import contained

P = ParamSpec("P")


class Listeners(Generic[P]):
    """Called in the order in which they were added. One that raises keeps no other from being called."""

    def __init__(self) -> None:
        self._listeners: list[Callable[P, object]] = []

    def add(self, listener: Callable[P, object]) -> Callable[[], None]:
        """Returns how to remove it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def call(self, *arguments: P.args, **named: P.kwargs) -> None:
        """Whoever is added meanwhile is not called; a listener may remove itself."""
        for listener in tuple(self._listeners):
            with contained("listener", getattr(listener, "__qualname__", "")):
                listener(*arguments, **named)
