"""Real processes and real signals: what Kubernetes and a person at a terminal see."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

EXAMPLE = """
import asyncio, sys
from common.server import program
from common.runtime.flags import Address, CommonOptions, UsageError

async def main(running):
    {body}

options = CommonOptions(
    health_address=Address("127.0.0.1", 0), log_format="json", drain_delay={drain_delay}, stop_timeout={stop_timeout}
)
sys.exit(program.run("example", options, main))
"""


@contextmanager
def example(body: str, drain_delay: float = 0.0, stop_timeout: float = 5.0) -> Iterator[Example]:
    source = EXAMPLE.format(body=body, drain_delay=drain_delay, stop_timeout=stop_timeout)
    process = subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.PIPE, text=True)
    try:
        yield Example(process)
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


class Example:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, object]] = []

    def until(self, message: str) -> dict[str, object]:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1]["message"] == message:
                return self.lines[-1]
        raise AssertionError(f"{message!r} was never logged: {self.lines}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        return self.process.wait(timeout=60)


def ready(port: object) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


WAITS = "await running.stop.wait()"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(number: signal.Signals) -> None:
    with example(WAITS) as running:
        running.until("started")
        running.signal(number)
        assert running.until("ended")["status"] == 0
        assert running.end() == 0


def test_it_is_not_ready_at_once_but_serves_until_the_drain_delay_is_over() -> None:
    with example(WAITS, drain_delay=600.0) as running:
        port = running.until("started")["health_port"]
        assert ready(port) == 200
        running.signal(signal.SIGTERM)
        running.until("stopping")
        assert ready(port) == 503
        assert running.process.poll() is None
    with example(WAITS, drain_delay=2.0) as running:
        running.until("started")
        asked = time.monotonic()
        running.signal(signal.SIGTERM)
        assert running.end() == 0
        assert time.monotonic() - asked >= 2.0


def test_open_work_is_cut_off_after_the_stop_timeout() -> None:
    with example("await asyncio.sleep(60)", stop_timeout=0.2) as running:
        running.until("started")
        running.signal(signal.SIGTERM)
        assert running.until("open work is cut off")["why"] == "did not end within the stop timeout"
        assert running.end() == 1


def test_a_second_signal_cuts_it_off_but_lets_it_clean_up() -> None:
    body = """
    try:
        await asyncio.sleep(60)
    finally:
        print('{"message": "cleaned up"}', file=sys.stderr, flush=True)
    """
    with example(body, drain_delay=60.0) as running:
        running.until("started")
        running.signal(signal.SIGTERM)
        running.until("stopping")
        running.signal(signal.SIGTERM)
        assert running.until("open work is cut off")["why"] == "second signal"
        running.until("cleaned up")
        assert running.end() == 1


def test_main_that_ends_by_itself_ends_the_program_with_status_0() -> None:
    with example("pass") as running:
        assert running.end() == 0


def test_main_that_fails_ends_it_with_status_1_and_says_why_with_the_traceback() -> None:
    with example("raise RuntimeError('why')") as running:
        line = running.until("failed")
        assert line["level"] == "critical"
        assert re.search(r"RuntimeError: why$", str(line["exception"]))
        assert running.end() == 1


def test_what_the_user_gave_wrong_is_status_2_without_a_traceback() -> None:
    with example("raise UsageError('kubeconfig: no such context: x')") as running:
        line = running.until("cannot start")
        assert line["reason"] == "kubeconfig: no such context: x"
        assert "exception" not in line
        assert running.end() == 2


def test_the_code_of_a_program_is_in_no_garbage_collection() -> None:
    """A full one looks through all objects in one piece, and webhooks wait."""
    with example("import gc; assert gc.get_freeze_count() > 10 * len(gc.get_objects())") as running:
        assert running.end() == 0


def test_a_health_address_in_use_is_status_1() -> None:
    with example(WAITS) as first:
        port = first.until("started")["health_port"]
        source = EXAMPLE.format(body=WAITS, drain_delay=0, stop_timeout=1).replace(
            '"127.0.0.1", 0', f'"127.0.0.1", {port}'
        )
        second = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert json.loads(second.stderr.splitlines()[0])["message"] == "health address cannot be served"
