from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from devcluster.processes import ProcessGroup

PARENT = """
import os, sys, time
from pathlib import Path
from devcluster.processes import ProcessGroup
work = Path(sys.argv[1])
group = ProcessGroup(remove=work)
# A child that started one of its own, as a shell or a build does.
child = group.spawn(["/bin/sh", "-c", "sleep 61 & echo $!; wait"], log=work.parent / "log")
print(child.pid, flush=True)
time.sleep(60)
"""


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # Where nothing reaps orphans, as in some containers, a dead one remains as a zombie.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False  # no /proc here, or it ended just now: the next look tells


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closing_ends_children_and_what_they_started(tmp_path: Path) -> None:
    group = ProcessGroup()
    log = tmp_path / "log"
    child = group.spawn(["/bin/sh", "-c", "sleep 61 & echo $!; wait"], log=log)
    until(lambda: log.read_text().endswith("\n"))
    group.close()
    assert child.returncode == -signal.SIGKILL
    until(lambda: gone(int(log.read_text())))


def test_a_child_that_ended_is_waited_for(tmp_path: Path) -> None:
    group = ProcessGroup()
    child = group.spawn(["/bin/sh", "-c", "echo out; echo err >&2; exit 7"], log=tmp_path / "log")
    assert child.wait(60) == 7
    assert (tmp_path / "log").read_text() == "out\nerr\n"
    group.close()


def test_a_killed_parent_takes_children_and_directory_along(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "file").touch()
    command = [sys.executable, "-c", PARENT, str(work)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": "."}) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        log = tmp_path / "log"
        until(lambda: log.read_text().endswith("\n"))
        assert not gone(child)
        parent.kill()
    until(lambda: gone(child))
    until(lambda: gone(int(log.read_text())))
    until(lambda: not work.exists())
