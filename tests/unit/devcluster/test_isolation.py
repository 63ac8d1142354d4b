"""What a command in its own namespaces sees, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from devcluster import isolation

if why := isolation.missing():
    pytest.skip(why, allow_module_level=True)

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "devcluster.isolation"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def mounts() -> list[str]:
    return Path("/proc/self/mounts").read_text().splitlines()


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def cgroups() -> set[Path]:
    return set(Path("/sys/fs/cgroup").glob("**/seedquota-node-*"))


def sleeps(seconds: str) -> bool:
    """Whether a process does, anywhere on this machine."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended just now
            if (process / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                return True
    return False


def test_the_command_has_a_network_and_processes_of_its_own_and_leaves_nothing() -> None:
    before = mounts(), interfaces()
    name = uuid.uuid4().hex
    seconds = f"1{uuid.uuid4().int % 10**7}"
    script = f"""
echo $(ls /proc | grep -c '^[0-9]*$') $(ls /sys/fs/cgroup/*/$SEEDQUOTA_ISOLATED -d /sys/fs/cgroup/$SEEDQUOTA_ISOLATED \
  2>/dev/null | wc -l) $TMPDIR
ip -brief address show machines
touch /var/{name} $TMPDIR/{name}
sleep {seconds} &
exit 5"""
    ran = subprocess.run([*COMMAND, "sh", "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert ran.returncode == 5, ran.stderr
    processes, groups, temporary = ran.stdout.splitlines()[0].split()
    assert int(processes) < 10 and int(groups) > 0
    assert isolation.FIRST.address in ran.stdout
    assert not Path(temporary).exists() and not Path("/var", name).exists()
    assert (mounts(), interfaces()) == before
    assert not sleeps(seconds)


def test_an_interrupt_reaches_the_command_which_ends_in_good_order(tmp_path: Path) -> None:
    ready, ended = tmp_path / "ready", tmp_path / "ended"
    script = f"trap 'touch {ended}; exit 0' INT; touch {ready}; while :; do sleep 0.1; done"

    def heed() -> None:
        """A shell that runs this in the background lets it ignore the signal."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen([*COMMAND, "sh", "-c", script], env=ENVIRONMENT, preexec_fn=heed) as running:  # noqa: PLW1509
        until(ready.exists)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 128 + signal.SIGINT
    assert ended.exists()


def test_one_that_is_killed_leaves_no_process_and_its_control_groups_go_with_the_next() -> None:
    seconds = f"1{uuid.uuid4().int % 10**7}"
    with subprocess.Popen([*COMMAND, "sleep", seconds], env=ENVIRONMENT) as running:
        until(lambda: sleeps(seconds))
        mine = {path for path in cgroups() if path.name.endswith(f"-{running.pid}")}
        running.kill()
    until(lambda: not sleeps(seconds))
    assert mine
    assert subprocess.run([*COMMAND, "true"], env=ENVIRONMENT, check=False).returncode == 0
    assert not mine & cgroups()
