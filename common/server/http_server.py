"""HTTP/1.1 for webhooks and the health port: small requests, answered in order, at half the cost of aiohttp's server.

Callers are API servers and whoever else reaches the port: connections, what is held of them, and how long anything
takes are bounded. What a request is, `common/server/http_parser.py` decides; who may keep a connection,
`common/server/tcp_server.py`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

import msgspec

from common.server import tcp_server
from common.server.connections import UNNAMED, Identify
from common.server.http_parser import CONTINUE, Head, RefusedError, Request, RequestReader, Response, render, rendered
from common.server.tcp_server import BUSY, NEVER, Served, TcpServer

log = logging.getLogger(__name__)

MAX_PIPELINED = 64 * 1024  # bytes taken from one connection while its request is being answered

Handler = Callable[[Request], Awaitable[Response]]
_FAILED = Response(500, b"the request failed here\n")


class HttpServer(TcpServer):
    """Answers by `handle`, which is cancelled when its caller goes away. A body is read only where `identify` knows the
    caller; else it is 404."""

    def __init__(
        self,
        handle: Handler,
        *,
        max_body: int,
        identify: Identify = lambda _head: UNNAMED,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(stopping)
        self.handle = handle
        self.identify = identify
        self.max_body = max_body

    def serve(self, address: str, accepted: socket.socket) -> Served:
        return _Connection(self, address, accepted)


class _Connection(Served):
    """One request at a time, in order."""

    def __init__(self, server: HttpServer, address: str, accepted: socket.socket) -> None:
        super().__init__(server, address, accepted)
        self._serving = server
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(server.max_body, self._check)
        self._task: asyncio.Task[None] | None = None
        self._full = False  # reading is paused

    @property
    def answering(self) -> bool:
        return self._task is not None

    def connection_lost(self, error: BaseException | None) -> None:
        super().connection_lost(error)
        if self._task is not None:
            self._task.cancel()  # nobody is there to answer

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._reader.feed(data)
        self._hold(self._held + len(data))
        if self.holds_too_much():
            self.refuse(BUSY)
        elif self._task is None and not self._blocked:
            self._go_on()
        elif not self._full and self._reader.kept > MAX_PIPELINED:
            self._full = True
            self._made.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._task is None and not self._ended:
            self._go_on()

    def _check(self, head: Head) -> None:
        """Raises RefusedError."""
        caller = self._serving.identify(head)
        if caller is None:
            raise RefusedError(404, "not found")
        before = self.caller
        self.name(caller)
        if self.caller != before:
            self._reading = False  # for its body there is time anew

    def _go_on(self) -> None:
        """With the next request, or waiting for it."""
        try:
            request = self._reader.next()
        except RefusedError as refused:
            self.refuse(refused.response)
            return
        if request is not None:
            self.due = NEVER
            self._reading = False
            self._task = self._loop.create_task(self._answer(request))
            return
        if self._full:
            self._full = False
            self._made.resume_reading()
        if self.caller is None:
            self._reading = self._reader.begun
        elif not self._reader.begun:
            self.due = self._loop.time() + tcp_server.IDLE_SECONDS
        elif not self._reading:
            self._reading = True
            self.due = self._loop.time() + tcp_server.READ_SECONDS
        if self._reader.asks_to_continue():
            self._made.write(CONTINUE)

    async def _answer(self, request: Request) -> None:
        request = msgspec.structs.replace(request, address=self.address)
        try:
            response = await self._serving.handle(request)
        except Exception:  # the outermost edge of a request; its path is a secret
            log.exception("request failed", extra={"caller": self._party})
            response = _FAILED
        if self._ended:
            return
        last = request.close or self._server.stopping
        self._made.writelines(rendered(response, last=last, body=request.method != "HEAD"))
        self._task = None
        self._hold(self._reader.kept)
        if last:
            self._end()
        elif not self._blocked:
            self._go_on()

    def refuse(self, response: Response) -> None:
        """Answer, and read on for a moment without looking: closing on unread bytes would take the answer away."""
        self._made.write(render(response, last=True))
        self._ended = True
        self._reader = RequestReader(0)
        self._hold(0)
        self.due = self._loop.time() + tcp_server.DRAIN_SECONDS
        if self._task is not None:
            self._task.cancel()
        if self._full:
            self._made.resume_reading()
