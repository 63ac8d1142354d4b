"""Server processes of a control plane, each of which can be taken down and brought back; and etcd."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from devcluster.patience import Deadline
from devcluster.processes import ProcessGroup

log = logging.getLogger(__name__)

_START_TIMEOUT_SECONDS = 120.0
_STARTS = 5
_STOP_TIMEOUT_SECONDS = 20.0
_SOCKET_PATH_AT_MOST = 100


class StartError(Exception):
    """A server ended or did not become ready in time. The message has the end of its log."""


class Server:
    """A server process that can be taken down and brought back with the same address and data."""

    poll_seconds = 0.03  # how often it is asked whether it is ready
    starts_again_after: tuple[int, ...] = ()  # exit statuses

    def __init__(self, name: str, command: list[str], directory: Path, group: ProcessGroup) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._command = command
        self._group = group
        self._process: subprocess.Popen[bytes] | None = None

    def ended_by_itself(self) -> int | None:
        """Its exit status if nobody here ended it; then it can be started again. None if it runs or was ended."""
        status = None if self._process is None else self._process.poll()
        if status is not None:
            self._process = None
        return status

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises StartError."""
        assert self._process is None, f"{self.name} runs already"
        started, deadline, starts = time.monotonic(), Deadline(_START_TIMEOUT_SECONDS), 1
        self._process = self._group.spawn(self._command, log=self.log)
        while not await self._ready():
            if (status := self._process.poll()) is not None:
                if status in self.starts_again_after and starts < _STARTS:
                    starts += 1
                    log.warning("server starts again", extra={"server": self.name, "status": status})
                    self._process = self._group.spawn(self._command, log=self.log)
                    continue
                self._process = None
                raise StartError(f"{self.name} ended with status {status}; {self.end_of_log()}")
            if deadline.passed():
                await self.kill()
                raise StartError(f"{self.name} not ready after {time.monotonic() - started:.0f} s; {self.end_of_log()}")
            await asyncio.sleep(self.poll_seconds)
        log.info("server ready", extra={"server": self.name, "seconds": round(time.monotonic() - started, 2)})

    async def stop(self) -> None:
        """Let it end in good order; it is killed if that takes too long. Does nothing if it does not run."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it at once, as a crash would. Does nothing if it does not run."""
        await self._end(signal.SIGKILL)

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    def pause(self) -> None:
        """Stop it from answering while its connections stay open, as a machine that hangs."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a paused one would not see SIGTERM
        deadline = time.monotonic() + _STOP_TIMEOUT_SECONDS
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            await asyncio.sleep(self.poll_seconds)

    async def _ready(self) -> bool:
        return True

    def end_of_log(self) -> str:
        """For people."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join([f"the end of {self.log}:", *lines[-20:]])


class Etcd(Server):
    """One member, reached by a socket in a directory that only its user may enter. Survives a kill, not a power cut."""

    def __init__(self, executable: Path, directory: Path, group: ProcessGroup, name: str = "etcd") -> None:
        self._socket = directory / f"{name}.sock"
        self._data = directory / name
        if len(os.fsencode(self._socket)) > _SOCKET_PATH_AT_MOST:
            raise StartError(f"{directory} is too long a path for a socket in it; choose a shorter one")
        self.url = f"unix://{self._socket}"
        command = [
            str(executable),
            f"--data-dir={self._data}",
            f"--listen-client-urls={self.url}",
            f"--listen-peer-urls=unix://{directory / f'{name}-peer.sock'}",
            "--advertise-client-urls=http://localhost:2379",  # asked for, never dialled
            "--unsafe-no-fsync",
            "--watch-progress-notify-interval=1m",  # every few seconds, they are half of what idle servers cost
            "--quota-backend-bytes=4294967296",
            "--log-level=warn",
        ]
        super().__init__(name, command, directory, group)

    async def snapshot(self, target: Path) -> None:
        """Copies its data as they are at one moment, while it runs, to the directory `target`, which is made.

        A member that starts with the copy is one that was killed at that moment: every key has the value and every
        counter of revisions the number of then. A restore from etcd's own snapshot gives the same keys and revisions;
        it differs in the member's and the cluster's identity, which no API server looks at.
        """
        assert self._process is not None, f"{self.name} does not run"
        self.pause()
        try:
            await asyncio.to_thread(os.waitid, os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            await asyncio.to_thread(shutil.copytree, self._data, target, ignore=shutil.ignore_patterns("*.tmp"))
        finally:
            self.resume()

    async def restore(self, snapshot: Path) -> None:
        """Puts a snapshot in the place of its data; it must be down, and so should the API servers on it."""
        assert self._process is None, f"{self.name} runs"
        await asyncio.to_thread(shutil.rmtree, self._data)
        await asyncio.to_thread(shutil.copytree, snapshot, self._data)

    async def _ready(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(self._socket)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        writer.close()
        return True
