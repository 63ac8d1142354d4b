from __future__ import annotations

import io
import json
import logging
import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.runtime import log_limit, logs

log = logging.getLogger("example")


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def written(format: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.setup(format, level, stream)
    return stream


def test_json_is_one_line_with_the_facts_flat() -> None:
    stream = written("json")
    log.info("quota copied", extra={"quota": "a", "seeds": 2, "path": Path("/x")})
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "info",
        "logger": "example",
        "message": "quota copied",
        "quota": "a",
        "seeds": 2,
        "path": "/x",
    }


def test_json_keeps_its_own_fields_when_a_fact_has_their_name() -> None:
    stream = written("json")
    log.info("x", extra={"level": "high", "time": 3})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["level_"], line["time_"]) == ("info", "high", 3)


def test_an_exception_comes_with_its_traceback_in_the_same_line() -> None:
    stream = written("json")
    try:
        int("why")
    except ValueError:
        log.exception("reading failed", extra={"object": "a"})
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["exception"].splitlines()[-1] == "ValueError: invalid literal for int() with base 10: 'why'"
    assert json.loads(line)["object"] == "a"


def test_text_is_for_people() -> None:
    stream = written("text")
    log.warning("seed lost", extra={"seed": "eu-1", "why": "no route", "empty": ""})
    assert stream.getvalue().split(" ", 1)[1] == "WARNING example: seed lost seed=eu-1 why='no route' empty=''\n"


def test_a_fact_cannot_forge_a_line_of_text() -> None:
    stream = written("text")
    log.info("seen", extra={"quota": "a\n2026-01-01T00:00:00Z ERROR forged"})
    assert len(stream.getvalue().splitlines()) == 1


def test_less_than_the_level_is_not_written() -> None:
    stream = written("text", "warning")
    log.info("no")
    assert stream.getvalue() == ""


def test_paths_that_hold_secrets_are_not_written_by_libraries_even_at_debug() -> None:
    stream = written("json", "debug")
    logging.getLogger("aiohttp.access").info("POST /machines/uid/token")
    assert stream.getvalue() == ""


def test_setting_up_twice_writes_once() -> None:
    written("json")
    stream = written("json")
    log.info("once")
    assert len(stream.getvalue().splitlines()) == 1


def test_warnings_of_python_are_logged() -> None:
    stream = written("json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", UserWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    assert "UserWarning: old" in json.loads(stream.getvalue())["message"]


@pytest.mark.parametrize("fact", ["caller", "cluster"])
def test_what_a_caller_or_a_cluster_causes_is_limited_and_the_rest_is_not(
    fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = written("json")
    for number in range(1000):
        log.info("request refused", extra={fact: "eve", "number": number})
        log.info("write", extra={"user": "eve"})
    now[0] += log_limit.TOLD_SECONDS
    log.info("request refused", extra={fact: "ann"})
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    refused = [line[fact] for line in lines if line["message"] == "request refused"]
    assert refused == ["eve"] * int(log_limit.BURST) + ["ann"]
    assert sum(line["message"] == "write" for line in lines) == 1000
    told = [line for line in lines if line["message"] == "lines were left out"]
    assert [line["of_message"] for line in told] == ["request refused"] * 2
    assert sum(line["count"] for line in told) == 1000 - log_limit.BURST


def test_what_the_event_loop_says_of_broken_connections_is_limited() -> None:
    stream = written("text")
    for number in range(1000):
        logging.getLogger("asyncio").error(f"SSL handshake failed {number}")
    assert len(stream.getvalue().splitlines()) < log_limit.BURST + 10
