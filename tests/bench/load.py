"""A load generator that leaves the machine to what is measured: HTTP/1.1 over TLS on bare asyncio protocols.

Each client keeps one connection and one request under way, as an API server's webhook client does. It runs in a process
of its own: `python -m tests.bench.load` reads one JSON line (the task) and writes one (the result).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import ssl
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial

import uvloop

HOST = "127.0.0.1"
UID = b"00000000-0000-0000-0000-000000000000"  # in the template: replaced by a fresh one for every request
CREATED = b"HTTP/1.1 201"
_MESSAGE = re.compile(rb'"message":"((?:[^"\\]|\\.)*)"')


@dataclass
class Task:
    """`targets`: port and path, in turn one for each client. With a token of an API server, each client goes on to the
    next path with each request, and what is asked is the creation of an object."""

    targets: list[tuple[int, str]]
    ca: str
    body: str
    clients: int
    seconds: float
    token: str = ""


@dataclass
class Result:
    requests: int
    seconds: float
    allowed: int
    denied: int
    failed: int
    failure: str  # what the first that failed was told
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


class _Tally:
    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.counts = {"allowed": 0, "denied": 0, "failed": 0}
        self.failure = ""

    def add(self, seconds: float, answer: bytes) -> None:
        self.latencies.append(seconds)
        allowed = b'"allowed":true' in answer or answer.startswith(CREATED)
        outcome = "allowed" if allowed else "denied" if b'"code":403' in answer else "failed"
        self.counts[outcome] += 1
        if outcome == "failed" and not self.failure:
            said = _MESSAGE.search(answer)
            self.failure = (said[1] if said else answer)[:200].decode(errors="replace")


class _Client(asyncio.Protocol):
    def __init__(self, heads: Iterator[bytes], body: bytes, totals: _Tally, end: float) -> None:
        self._heads = heads
        self._parts = body.split(UID)
        self._totals = totals
        self._end = end
        self._received = b""
        self._sent = 0.0
        self._random = random.Random(uuid.uuid4().int)
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        uid = b"%08x-0000-4000-8000-%012x" % (self._random.getrandbits(32), self._random.getrandbits(48))
        self._sent = time.perf_counter()
        self._transport.write(next(self._heads) + uid.join(self._parts))  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        if not _is_complete(head.lower(), body):
            return
        now = time.perf_counter()
        self._totals.add(now - self._sent, CREATED if head.startswith(CREATED) else body)
        self._received = b""
        if now < self._end:
            self._send()
        else:
            self._transport.close()
            if not self.done.done():
                self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


async def run(task: Task) -> Result:
    context = ssl.create_default_context(cadata=task.ca)
    body = task.body.encode()
    totals = _Tally()
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    end = started + task.seconds
    connections = [
        loop.create_connection(partial(_Client, heads, body, totals, end), HOST, port, ssl=context)
        for port, heads in itertools.islice(_of_clients(task, body), task.clients)
    ]
    clients = [protocol for _, protocol in await asyncio.gather(*connections)]
    await asyncio.gather(*(client.done for client in clients))
    seconds = time.perf_counter() - started
    latencies = sorted(totals.latencies)
    return Result(
        requests=len(latencies),
        seconds=seconds,
        p50_ms=latencies[len(latencies) // 2] * 1000,
        p99_ms=latencies[len(latencies) * 99 // 100] * 1000,
        failure=totals.failure,
        **totals.counts,
    )


def _of_clients(task: Task, body: bytes) -> Iterator[tuple[int, Iterator[bytes]]]:
    """For each client its port and what it begins its requests with."""
    heads = [(port, _head(path, body, task.token)) for port, path in task.targets]
    shared = itertools.cycle(head for _, head in heads)
    for port, head in itertools.cycle(heads):
        yield port, shared if task.token else itertools.repeat(head)


def _head(path: str, body: bytes, token: str) -> bytes:
    asks = f"Authorization: Bearer {token}\r\n" if token else ""
    return (
        f"POST {path}{'' if token else '?timeout=3s'} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"{asks}Content-Length: {len(body)}\r\n\r\n"
    ).encode()


def _is_complete(head: bytes, body: bytes) -> bool:
    if b"transfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    return len(body) >= int(head.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])


async def in_process(task: Task) -> Result:
    """Runs the task in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.load", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    answer, _ = await process.communicate(json.dumps(asdict(task)).encode())
    if process.returncode != 0:
        raise RuntimeError(f"the load generator ended with status {process.returncode}")
    return Result(**json.loads(answer))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(asdict(runner.run(run(Task(**json.loads(sys.stdin.read())))))))
