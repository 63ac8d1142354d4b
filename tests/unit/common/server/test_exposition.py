from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from common.server import exposition
from common.server.exposition import Exposition

OPEN = "application/openmetrics-text; version=1.0.0"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


class Counting:
    def __init__(self) -> None:
        self.times = 0

    def collect(self) -> Iterator[Metric]:
        self.times += 1
        yield GaugeMetricFamily("times", "x", value=self.times)


def filled() -> CollectorRegistry:
    registry = CollectorRegistry()
    many = Gauge("many", "A \\ and\na line.", ["name"], registry=registry)
    for number in range(exposition.PIECE * 2 + 7):
        many.labels(f"{number}\n").set(number)
    seconds = Histogram("took_seconds", "x", ["name"], registry=registry)
    for number in range(exposition.PIECE // 10):
        seconds.labels(str(number)).observe(number)
    Counter("asked", "x", registry=registry).inc(3)
    Counter("never", "x", ["name"], registry=registry)
    Info("build", "x", registry=registry).info({"version": "1"})
    return registry


@pytest.mark.parametrize("accept", ["", "*/*", OPEN])
async def test_in_pieces_it_is_what_the_library_writes_at_once(accept: str) -> None:
    registry = filled()
    encode, content_type = choose_encoder(accept)
    assert await Exposition(registry).read(accept) == (encode(registry), content_type)


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        (PROMETHEUS_3, True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("text/plain;version=1.0.0,application/openmetrics-text", False),
        ("application/openmetrics-text;version=" + "9" * 5000, True),
        (";;,=,", False),
    ],
)
async def test_of_whatever_is_asked_for_there_are_two_formats(accept: str, is_open: bool) -> None:
    found = Exposition(filled())
    content, content_type = await found.read(accept)
    assert content.endswith(b"# EOF\n") == is_open == content_type.startswith("application/openmetrics-text")


async def test_all_who_ask_share_one_rendering_which_is_kept_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "KEPT_SECONDS", 600.0)
    registry, counting = CollectorRegistry(), Counting()
    registry.register(counting)
    found = Exposition(registry)
    first = asyncio.create_task(found.read(""))
    await asyncio.sleep(0)
    others = [asyncio.create_task(found.read("")) for _ in range(50)]
    await asyncio.sleep(0)
    first.cancel()
    assert {content for content, _ in await asyncio.gather(*others)} == {
        b"# HELP times x\n# TYPE times gauge\ntimes 1.0\n"
    }
    await found.read("")
    assert counting.times == 1
    monkeypatch.setattr(exposition, "KEPT_SECONDS", 0.0)
    registry = CollectorRegistry()
    registry.register(counting)
    found = Exposition(registry)
    for times in (2, 3):
        assert f"times {times}.0".encode() in (await found.read(""))[0]


async def test_what_fails_is_tried_again() -> None:
    class Failing:
        fails = True

        def collect(self) -> Iterator[Metric]:
            if self.fails:
                raise KeyError("lost")
            yield GaugeMetricFamily("found", "x", value=1)

    registry, failing = CollectorRegistry(), Failing()
    registry.register(failing)
    found = Exposition(registry)
    with pytest.raises(KeyError):
        await found.read("")
    failing.fails = False
    assert b"found 1.0" in (await found.read(""))[0]
