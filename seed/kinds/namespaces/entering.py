"""Namespaces with very many objects, and very many namespaces, which come into a selection in pieces: others have their
turn between them. What is kept of one that left is freed in pieces, too.

A tenant may relabel a namespace with 200,000 pods again and again. Until one has come in wholly, the lists of its
selection are as old as they were before: an account that needs later ones is not counted from it (rule 4.4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from common.runtime.pieces import all_in_pieces, in_pieces
from common.runtime.unexpected import contained
from seed.kinds.namespaces.evaluators.namespaced import NamespacedEvaluator

AT_ONCE = 100  # objects that come in by one step of the event loop, or namespaces looked at: 1 ms for each quota

Subjects = Iterable[tuple[NamespacedEvaluator[Any], Any]]
Steps = Callable[[], Iterator[Callable[[], object]]]


class Selection(Protocol):
    """`entering`: namespaces of which not all is counted yet, and as of which lists all else is. None: all of them."""

    entering: dict[str | None, int]


S = TypeVar("S", bound=Selection)


class Entering(Generic[S]):
    """`run()` it. `subjects(counting, namespace)`: what is in it. `put` takes one up, if it is still there.
    `look(counting, namespace)`: takes it up if it is selected. `entered(counting)`: one has come in, or all were
    looked at."""

    def __init__(
        self,
        subjects: Callable[[S, str], Subjects],
        put: Callable[[S, NamespacedEvaluator[Any], Any], None],
        look: Callable[[S, str], object],
        entered: Callable[[S], None],
    ) -> None:
        self._subjects = subjects
        self._put = put
        self._look = look
        self._entered = entered
        self._waiting: dict[tuple[S, str | None], Steps] = {}  # others for each time that it enters
        self._left: deque[Iterable[object]] = deque()
        self._wake = asyncio.Event()

    def begin(self, counting: S, namespace: str, listed_from: int) -> None:
        """`listed_from`: of what is counted without it."""
        self._begin(counting, namespace, listed_from, lambda: self._puts(counting, namespace))

    def begin_all(self, counting: S, names: Collection[str]) -> None:
        """Looks at each of them. Until then, nothing of `counting` is as of any list."""
        self._begin(counting, None, 0, lambda: (partial(self._look, counting, name) for name in names))

    def _begin(self, counting: S, namespace: str | None, listed_from: int, steps: Steps) -> None:
        counting.entering[namespace] = listed_from
        self._waiting[counting, namespace] = steps
        self._wake.set()

    def _puts(self, counting: S, namespace: str) -> Iterator[Callable[[], object]]:
        for evaluator, subject in self._subjects(counting, namespace):
            yield partial(self._put, counting, evaluator, subject)

    def end(self, counting: S, namespace: str | None) -> None:
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
                (counting, namespace), steps = next(iter(self._waiting.items()))
                await self._enter(counting, namespace, steps)
            await self._wake.wait()

    async def _enter(self, counting: S, namespace: str | None, steps: Steps) -> None:
        async for step in in_pieces(steps()):
            if self._waiting.get((counting, namespace)) is not steps:
                return
            step()
        if self._waiting.get((counting, namespace)) is not steps:
            return
        self.end(counting, namespace)
        with contained("namespaces", namespace or "all"):
            self._entered(counting)
