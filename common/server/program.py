"""How both programs start, run and end: logs, event loop, signals, health, exit status.

    sys.exit(program.run("seedquota-seed", options, main))

On SIGTERM or SIGINT: /readyz says no at once while everything is still served; after `drain_delay` `stop` is set and
main has `stop_timeout` to end. A second signal cuts it off.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from common.runtime import garbage, logs, metrics
from common.runtime.event_loop import EventLoop
from common.runtime.flags import CommonOptions, UsageError
from common.runtime.stalls import Stalls
from common.runtime.waiting import within
from common.server.health import Health

log = logging.getLogger(__name__)

CLEAN = 0
FAILED = 1
USAGE = 2

CUT_OFF_SECONDS = 2.0  # what main has for its `finally` blocks once it is cancelled


class Program:
    """Handed to main. `health`: add checks to it. `stop`: end when it is set, having finished what is open."""

    def __init__(self) -> None:
        self.health = Health()
        self.stop = asyncio.Event()


Main = Callable[[Program], Awaitable[None]]


def run(name: str, options: CommonOptions, main: Main) -> int:
    """Runs main until it returns or a signal asks for the end. Returns the exit status: 0 clean, 1 failed, 2 usage."""
    logs.setup(options.log_format, options.log_level)
    garbage.begin()
    metrics.announce_build()
    try:
        with asyncio.Runner(loop_factory=EventLoop) as runner:
            return runner.run(_run(name, options, main))
    except KeyboardInterrupt:  # before the signal handlers are in place
        return FAILED


def _lost(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A connection that breaks within TLS: uvloop calls that fatal, while the request that used it fails anyway."""
    error = context.get("exception")
    if str(context.get("message")).startswith("Fatal error on SSL protocol") and isinstance(
        error, OSError | RuntimeError
    ):
        log.info("connection broke", extra={"caller": "", "error": str(error)})
    else:
        loop.default_exception_handler(context)


async def _run(name: str, options: CommonOptions, main: Main) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_lost)
    stalls = Stalls()
    metrics.watch_stalls(stalls)
    stalls.start(loop)
    collector = garbage.Collector()
    collector.start(loop)
    program = Program()
    signals = _Signals(program.health)
    facts = {"program": name, "version": metrics.build_version()}
    try:
        async with program.health.serve(options.health_address):
            log.info("started", extra={**facts, "health_port": program.health.port})
            status = await _until_stopped(program, options, main, signals)
    except OSError:
        log.exception("health address cannot be served", extra={"address": str(options.health_address)})
        return FAILED
    finally:
        stalls.stop()
        collector.stop()
    log.info("ended", extra={**facts, "status": status})
    return status


class _Signals:
    """Listens from its making until the loop closes."""

    def __init__(self, health: Health) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()
        self._health = health
        loop = asyncio.get_running_loop()
        for received in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(received, self._receive, received)

    def _receive(self, received: signal.Signals) -> None:
        if self.asked.is_set():
            self.insisted.set()
            return
        self._health.stopping = True
        self.asked.set()
        log.info("stopping", extra={"signal": received.name})


async def _until_stopped(program: Program, options: CommonOptions, main: Main, signals: _Signals) -> int:
    working = asyncio.ensure_future(main(program))
    ending = asyncio.create_task(_end(program, options, signals), name="program end")
    try:
        await asyncio.wait([working, ending], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return _status(working)
        log.warning("open work is cut off", extra={"why": ending.result()})
        working.cancel()
        await asyncio.wait([working], timeout=CUT_OFF_SECONDS)
        return FAILED
    finally:
        ending.cancel()
        await asyncio.wait([ending])


async def _end(program: Program, options: CommonOptions, signals: _Signals) -> str:
    """Leads main to its end. Returns, with the reason, when main must be cut off."""
    await signals.asked.wait()
    if await within(signals.insisted, options.drain_delay):
        return "second signal"
    program.stop.set()
    if await within(signals.insisted, options.stop_timeout):
        return "second signal"
    return "did not end within the stop timeout"


def _status(working: asyncio.Future[None]) -> int:
    if working.cancelled():
        log.error("main was cancelled")
        return FAILED
    error = working.exception()
    if error is None:
        return CLEAN
    if isinstance(error, UsageError):
        log.error("cannot start", extra={"reason": str(error)})
        return USAGE
    log.critical("failed", exc_info=error)
    return FAILED
