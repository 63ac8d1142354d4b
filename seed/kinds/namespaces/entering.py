"""Namespaces with very many objects, which come into a selection in pieces: others have their turn between them. What
is kept of one that left is freed in pieces, too.

A tenant may relabel a namespace with 200,000 pods again and again. Until one has come in wholly, the lists of its
selection are as old as they were before: an account that needs later ones is not counted from it (rule 4.4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from common.runtime.pieces import all_in_pieces, in_pieces
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
        self._left: deque[Iterable[object]] = deque()
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

    def free(self, left: Iterable[object]) -> None:
        """`left`: frees a little at each step. It comes before what enters, of which there may always be some."""
        self._left.append(left)
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            while self._left or self._waiting:
                if self._left:
                    await all_in_pieces(self._left.popleft())
                    continue
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
