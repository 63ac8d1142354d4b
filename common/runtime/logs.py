"""Structured logs: one line an event, its facts as fields of their own.

    log.info("quota copied", extra={"quota": name, "seed": seed})

Messages are constant, so that they can be counted; facts go into `extra`, though not under logging's own words (`name`,
`args`, `module`, ...: KeyError). No secret is ever put into either.

What a line is about may write without end: lines with the fact `caller` or `cluster`, and those of asyncio about broken
connections, are limited (common/runtime/log_limit.py). Another line says how many were left out.
"""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from typing import TextIO

import msgspec
from prometheus_client import Counter

from common.runtime.log_limit import LineLimit

LEVELS = ("debug", "info", "warning", "error")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_RESERVED = ("time", "level", "logger", "message", "exception", "stack")

# What other people's code writes that must not be seen: aiohttp's access log has the paths that carry the webhook's
# token.
_LEAST_LEVELS = {"aiohttp.access": logging.ERROR}

_CAUSED_BY = ("caller", "cluster")
_OF_CONNECTIONS = "asyncio"

_LEFT_OUT = Counter(
    "seedquota_log_lines_left_out_total",
    "Lines of the log that were not written, since one caller or cluster, or all of them, caused too many.",
    ["logger"],
)


def setup(format: str, level: str, stream: TextIO | None = None) -> None:
    """Makes the root logger write to the stream (standard error if none). Format: json or text."""
    handler = LimitedHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JSONFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_level(level)
    logging.captureWarnings(capture=True)


def set_level(level: str) -> None:
    """One of LEVELS: the least that is written from now on."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name, least in _LEAST_LEVELS.items():
        logging.getLogger(name).setLevel(max(least, root.level))


class LimitedHandler(logging.StreamHandler[TextIO]):
    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._limit = LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        for (name, message, level), count in self._limit.left_out(now).items():
            facts = {"of_logger": name, "of_message": message, "count": count}
            told = logging.LogRecord(__name__, level, __file__, 0, "lines were left out", (), None)
            vars(told).update(facts)
            super().emit(told)
        caller = _caller(record)
        message = "" if record.name == _OF_CONNECTIONS else str(record.msg)
        if caller is None or self._limit.allows((record.name, message, record.levelno), caller, now):
            super().emit(record)
        else:
            _LEFT_OUT.labels(record.name).inc()


def _caller(record: logging.LogRecord) -> str | None:
    """Who caused it; None: it was nobody in particular."""
    if record.name == _OF_CONNECTIONS:
        return ""
    facts = vars(record)
    return next((str(facts[name]) for name in _CAUSED_BY if name in facts), None)


class JSONFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _facts(record).items():
            line[f"{key}_" if key in _RESERVED else key] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """Time, level, message and facts; the tracebacks below."""

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {key}={_word(value)}" for key, value in _facts(record).items())
        message = record.getMessage().replace("\n", "\\n")
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {message}{facts}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        if record.stack_info:
            line = f"{line}\n{self.formatStack(record.stack_info)}"
        return line


def _facts(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _word(value: object) -> str:
    shown = str(value)
    return shown if shown and shown.isprintable() and not set(shown) & set(' "=') else repr(shown)
