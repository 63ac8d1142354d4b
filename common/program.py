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

import uvloop

from common import logs, metrics
from common.health import Health
from common.options import CommonOptions, UsageError

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
    metrics.announce_build()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(name, options, main))
    except KeyboardInterrupt:  # before the signal handlers are in place
        return FAILED


async def _run(name: str, options: CommonOptions, main: Main) -> int:
    program = Program()
    facts = {"program": name, "version": metrics.build_version()}
    try:
        async with program.health.serve(options.health_address):
            log.info("started", extra={**facts, "health_port": program.health.port})
            status = await _until_stopped(program, options, main)
    except OSError:
        log.exception("health address cannot be served", extra={"address": str(options.health_address)})
        return FAILED
    log.info("ended", extra={**facts, "status": status})
    return status


async def _until_stopped(program: Program, options: CommonOptions, main: Main) -> int:
    working = asyncio.ensure_future(main(program))
    asked, insisted = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(received: signal.Signals) -> None:
        if asked.is_set():
            insisted.set()
            return
        program.health.stopping = True
        asked.set()
        log.info("stopping", extra={"signal": received.name})

    signals = (signal.SIGTERM, signal.SIGINT)
    for received in signals:
        loop.add_signal_handler(received, on_signal, received)
    ending = asyncio.create_task(_end(program, options, working, asked, insisted), name="program end")
    try:
        await asyncio.wait([working, ending], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait([working], timeout=CUT_OFF_SECONDS)
            return FAILED
        return _status(working)
    finally:
        ending.cancel()
        await asyncio.wait([ending])
        for received in signals:
            loop.remove_signal_handler(received)


async def _end(
    program: Program,
    options: CommonOptions,
    working: asyncio.Future[None],
    asked: asyncio.Event,
    insisted: asyncio.Event,
) -> None:
    """Returns when main must be cut off."""
    await asked.wait()
    if await _within(insisted, options.drain_delay):
        log.warning("cut off by a second signal")
        return
    program.stop.set()
    if await _within(insisted, options.stop_timeout):
        log.warning("cut off by a second signal")
    elif not working.done():
        log.error("cut off: open work did not end in time", extra={"stop_timeout": options.stop_timeout})


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


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
