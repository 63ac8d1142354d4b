"""Namespaces with very many objects, which come into a selection in pieces: others have their turn between them.

A tenant may relabel a namespace with 200,000 pods again and again. Until one has come in wholly, the lists of its
selection are as old as they were before: an account that needs later ones is not counted from it (rule 4.4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from common.runtime.pieces import in_pieces
from common.runtime.unexpected import contained
from seed.kinds.namespaces.evaluators.namespaced import NamespacedEvaluator

AT_ONCE = 2_000  # objects that come in by one step of the event loop: some 15 ms

Subjects = Iterable[tuple[NamespacedEvaluator[Any], Any]]


class Selection(Protocol):
    """`entering`: namespaces of which not all is counted yet, and as of which lists all else is."""

    entering: dict[str, int]


S = TypeVar("S", bound=Selection)


class Entering(Generic[S]):
    """`run()` it. `subjects(counting, namespace)`: what is in it. `put` takes one up, if it is still there.
    `entered(counting)`: one has come in."""

    def __init__(
        self,
        subjects: Callable[[S, str], Subjects],
        put: Callable[[S, NamespacedEvaluator[Any], Any], None],
        entered: Callable[[S], None],
    ) -> None:
        self._subjects = subjects
        self._put = put
        self._entered = entered
        self._waiting: dict[tuple[S, str], object] = {}  # an object for each time that it enters
        self._wake = asyncio.Event()

    def begin(self, counting: S, namespace: str, listed_from: int) -> None:
        """`listed_from`: of what is counted without it."""
        counting.entering[namespace] = listed_from
        self._waiting[counting, namespace] = object()
        self._wake.set()

    def end(self, counting: S, namespace: str) -> None:
        """It is in, or not selected any more."""
        counting.entering.pop(namespace, None)
        self._waiting.pop((counting, namespace), None)

    async def run(self) -> None:
        while True:
            self._wake.clear()
            while self._waiting:
                (counting, namespace), entry = next(iter(self._waiting.items()))
                await self._enter(counting, namespace, entry)
            await self._wake.wait()

    async def _enter(self, counting: S, namespace: str, entry: object) -> None:
        async for evaluator, subject in in_pieces(self._subjects(counting, namespace)):
            if self._waiting.get((counting, namespace)) is not entry:
                return
            self._put(counting, evaluator, subject)
        if self._waiting.get((counting, namespace)) is not entry:
            return
        self.end(counting, namespace)
        with contained("namespaces", namespace):
            self._entered(counting)
