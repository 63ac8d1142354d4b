from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

import pytest
from prometheus_client import REGISTRY

from common.runtime import unexpected
from common.runtime.unexpected import contained, kept_running
from tests.unit.fake_api_server import eventually, within

UNICODE = UnicodeDecodeError("utf-8", b"\xda", 0, 1, "invalid continuation byte")
ODD = [UNICODE, RecursionError(), KeyError("x"), AssertionError(), OverflowError(), MemoryError(), RuntimeError("x")]


def counted(part: str) -> float:
    return REGISTRY.get_sample_value("seedquota_unexpected_errors_total", {"part": part}) or 0.0


@pytest.fixture(autouse=True)
def _full_buckets() -> None:
    unexpected._buckets.clear()


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
def test_an_error_of_one_is_counted_and_logged_with_whose_it_is(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    before, done = counted("test"), []
    for whose in ("bad", "good"):
        with contained("test", whose) as attempt:
            if whose == "bad":
                raise error
            done.append(whose)
        assert attempt.failed == (whose == "bad")
    assert done == ["good"]
    assert counted("test") == before + 1
    (record,) = caplog.records
    assert vars(record)["whose"] == "bad" and record.exc_info and record.exc_info[1] is error


def test_what_fails_a_thousand_times_is_counted_and_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    before = counted("many")
    for number in range(1000):
        with contained("many", str(number)):
            raise KeyError(number)
    assert counted("many") == before + 1000
    assert len(caplog.records) <= unexpected.LOGGED_AT_ONCE + 1


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_program_is_not_held_up(end: type[BaseException]) -> None:
    with pytest.raises(end), contained("test"):
        raise end


async def test_who_is_cancelled_ends_and_who_waited_for_what_is_cancelled_does_not() -> None:
    after: list[str] = []

    async def waits(future: asyncio.Future[None]) -> None:
        with contained("test"):
            await future
        after.append("went on")

    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    cancelled, goes_on = asyncio.create_task(waits(first)), asyncio.create_task(waits(second))
    await asyncio.sleep(0)
    cancelled.cancel()
    second.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled
    await goes_on
    assert cancelled.cancelled() and after == ["went on"]


async def test_what_runs_all_the_time_runs_again_later_and_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unexpected, "FIRST_PAUSE", 0.001)
    runs: list[float] = []

    async def work() -> None:
        runs.append(asyncio.get_running_loop().time())
        if len(runs) <= len(ODD):
            raise ODD[len(runs) - 1]
        await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(kept_running("runs", work))
    await eventually(lambda: len(runs) > len(ODD))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pauses = [later - sooner for sooner, later in itertools.pairwise(runs)]
    assert all(pause >= 0.0009 * 2**number for number, pause in enumerate(pauses))
    assert len(caplog.records) == len(ODD)


async def test_what_is_to_end_the_work_ends_it_also_in_a_group() -> None:
    async def fails(error: Exception) -> None:
        raise error

    async def group(error: Exception) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails(error))

    async with within(5):
        with pytest.raises(OSError, match="gone"):
            await kept_running("ends", lambda: fails(OSError("gone")), ends=(OSError,))
        with pytest.raises(ExceptionGroup):
            await kept_running("ends", lambda: group(OSError("gone")), ends=(OSError,))
