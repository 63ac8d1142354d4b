"""What is under way between processes and servers. The schedule delivers it, in any order, or loses it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from common.kube.client.errors import ApiError
from seed.ledger.store import ConflictError
from tests.sim.loop import Clock, Loop

DELAYS = (0.5, 3.0, 10.0, 25.0)  # seconds of what is overtaken
QUICK = 0.7  # of the answers come right after what they answer; the rest leave time for something in between


class Place(Protocol):
    """Something that can be reached, or not."""

    name: str
    up: bool


class Process:
    """One running program. `place` is where it runs: what is cut off from there is cut off from it."""

    def __init__(self, name: str, place: str, loop: Loop) -> None:
        self.name = name
        self.place = place
        self.loop = loop
        self.deaf_until = 0.0  # it does not notice what becomes of its lease

    @property
    def alive(self) -> bool:
        return not self.loop.dead

    def crash(self) -> None:
        """At whatever it waits for; nothing of it is ever run again. What it sent is still under way."""
        self.loop.crash()

    def end(self) -> None:
        """What it held is let go of without a garbage collection, which would take longer."""
        self.crash()
        for part in (*self.parts(), self.loop, self):
            vars(part).clear()

    def parts(self) -> list[object]:
        return []


class Flight:
    """A request, then its answer. `future` is None for what nobody waits for (any more)."""

    __slots__ = ("done", "effect", "error", "future", "lost", "result", "sender", "server", "until", "what")

    def __init__(
        self,
        what: str,
        sender: Process | None,
        server: Place,
        effect: Callable[[], Any],
        future: asyncio.Future[Any] | None,
        lost: Exception | None,
    ) -> None:
        self.what = what
        self.sender = sender
        self.server = server
        self.effect = effect
        self.future = future
        self.lost = lost
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None
        self.until = 0.0  # others overtake it


class Network:
    def __init__(self, rng: random.Random, clock: Clock, note: Callable[[str], None] | None) -> None:
        self.flying: list[Flight] = []
        self._clock = clock
        self.cut: set[tuple[str, str]] = set()
        self.held: dict[tuple[str, str], float] = {}  # what is sent from there to there arrives then, and not before
        self.loss = 0.0  # of the requests, and of the answers
        self.late = 0.0  # of the requests: the sender gives up, and then it arrives
        self.repeat = 0.0  # of what nobody waits for
        self.resend = 0.0  # of writes: a client whose connection ends sends one again, and hears of the second only
        self._rng = rng
        self._note = note

    def reaches(self, place: str, server: Place) -> bool:
        return server.up and (place, server.name) not in self.cut

    def call(
        self, what: str, sender: Process, server: Place, effect: Callable[[], Any], lost: Exception
    ) -> asyncio.Future[Any]:
        """What a process asks of a server. `lost` is raised there when no answer comes."""
        future = sender.loop.create_future()
        flight = Flight(what, sender, server, effect, future, lost)
        self.flying.append(flight)
        if (until := self._held_until(sender.place, server)) > self._clock.now:
            future.set_exception(lost)  # who waits gives up before
            flight.future, flight.until = None, until
        return future

    def _held_until(self, place: str, server: Place) -> float:
        return self.held.get((place, server.name), 0.0)

    def post(self, what: str, sender: Process | None, server: Place, effect: Callable[[], Any]) -> None:
        """What nobody waits to hear of."""
        flight = Flight(what, sender, server, effect, None, None)
        if self.late > 0 and self._rng.random() < 3 * self.late:
            flight.until = self._clock.now + self._rng.choice(DELAYS)
        if sender is not None and (until := self._held_until(sender.place, server)) > self._clock.now:
            flight.until = until
            for index, known in enumerate(self.flying):
                if (known.what, known.sender, known.until) == (what, sender, until):
                    self.flying[index] = flight  # of what is said again and again, the last is enough
                    return
        self.flying.append(flight)

    def sends_again(self) -> bool:
        return self.resend > 0 and self._rng.random() < self.resend

    def due(self) -> list[int]:
        """What can arrive now."""
        now = self._clock.now
        return [place for place, flight in enumerate(self.flying) if flight.until <= now]

    def deliver(self, index: int) -> None:
        """One step of one flight: it arrives, its answer arrives, or either is lost."""
        flying = self.flying
        flight = flying[index]
        rng = self._rng
        if not flight.done:
            sender = flight.sender
            if not flight.server.up or (sender is not None and (sender.place, flight.server.name) in self.cut):
                self._remove(index)
                self._fail(flight, "cut off")
                return
            fate = rng.random()
            if fate < self.loss:
                self._remove(index)
                self._fail(flight, "lost")
                return
            if flight.future is not None and fate < self.loss + self.late:
                self._fail(flight, "late")  # it is still under way
                flight.future = None
                flight.until = self._clock.now + rng.choice(DELAYS)
                return
            if self._note is not None:
                self._note(f"arrives: {flight.what}")
            if flight.future is None:
                if flight.lost is not None or rng.random() >= self.repeat:
                    self._remove(index)
                with suppress(ConflictError, ApiError):  # nobody hears of it
                    flight.effect()
                return
            try:
                flight.result = flight.effect()
            except Exception as error:  # noqa: BLE001 (it is the answer)
                flight.error = error
            flight.done = True
            if rng.random() >= QUICK:
                return
            index = index if index < len(flying) and flying[index] is flight else flying.index(flight)
        self._remove(index)
        if rng.random() < self.loss:
            self._fail(flight, "answer lost")
        else:
            self._answer(flight)

    def _remove(self, index: int) -> None:
        last = self.flying.pop()
        if index < len(self.flying):
            self.flying[index] = last

    def _fail(self, flight: Flight, why: str) -> None:
        if self._note is not None:
            self._note(f"{why}: {flight.what}")
        if flight.future is not None and flight.sender is not None and flight.sender.alive:
            flight.error = flight.lost
            self._answer(flight)

    def _answer(self, flight: Flight) -> None:
        future, sender = flight.future, flight.sender
        if future is None or sender is None or not sender.alive or future.done():
            return
        if flight.error is not None:
            future.set_exception(flight.error)
        else:
            future.set_result(flight.result)
        sender.loop.run()
