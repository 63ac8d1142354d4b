"""Child processes that never outlive their parent, however it ends.

A watcher process leads a process group and waits for its standard input to end, which the kernel guarantees when the
parent is gone. Every child joins that group in the act of being spawned, so there is no moment in which one is
unguarded. (PR_SET_PDEATHSIG would fire when the spawning thread ends, and exists on Linux only.)
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path


class ProcessGroup:
    """Spawns children that are killed by `close()` or, failing that, as soon as this process ends."""

    def __init__(self, remove: Path | None = None) -> None:
        """`remove` is a directory that goes too if this process ends without `close()`."""
        command = [sys.executable, "-I", "-S", __file__, *([] if remove is None else [str(remove)])]
        self._watcher = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        )
        self._children: list[subprocess.Popen[bytes]] = []

    def spawn(
        self, command: Sequence[str], *, log: Path | None, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a child whose output is appended to `log`, or goes where this process' output goes."""
        with nullcontext() if log is None else log.open("ab") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                cwd=cwd,
                env=env,
                process_group=self._watcher.pid,
            )
        self._children = [*(running for running in self._children if running.poll() is None), child]
        return child

    def send_signal(self, number: signal.Signals) -> None:
        """To every child and all that it started. The watcher ignores what asks for an end."""
        os.killpg(self._watcher.pid, number)

    def close(self) -> None:
        """Kill every child with all that it started, and return when they are gone."""
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait()
        for child in self._children:
            child.wait()


def _watch(remove: Path | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    group = os.getpgrp()
    if os.fork():
        while True:  # until the kill below, which takes the group's leader too
            signal.pause()
    os.setpgid(0, 0)
    os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while remove is not None and remove.exists() and time.monotonic() < deadline:
        shutil.rmtree(remove, ignore_errors=True)
        time.sleep(0.05)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
