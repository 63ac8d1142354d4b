"""`python -m devcluster.isolation COMMAND...`: runs a command on what looks like a machine of its own.

Its processes, mounts and network interfaces are in namespaces that end with it, however it ends. What it writes below
/var, /run and $TMPDIR is gone then, too. Control groups are removed at the end, or by the next run.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.processes import ProcessGroup

INSIDE = "SEEDQUOTA_ISOLATED"  # the name of the control group that is kept for the command


@dataclass(frozen=True)
class Machine:
    """What a node runs on: a network with an address, in which commands are run, and a range for pods.

    All machines reach each other's addresses and pods.
    """

    name: str
    address: str
    pods: str

    def inside(self, *command: str) -> list[str]:
        return list(command) if self is FIRST else ["nsenter", f"--net=/run/netns/{self.name}", *command]


FIRST = Machine("node-1", "192.0.2.1", "10.88.0.0/16")  # where the isolated command itself runs
SECOND = Machine("node-2", "192.0.2.2", "10.89.0.0/16")
THIRD = Machine("node-3", "192.0.2.3", "10.90.0.0/16")
_MACHINES = (FIRST, SECOND, THIRD)

_CGROUP = "seedquota-node-"
_CGROUPS = Path("/sys/fs/cgroup")
_TOOLS = ("unshare", "nsenter", "mount", "ip")
_END_SECONDS = 30.0  # for a command that was interrupted
_KUBELETS_SYSCTLS = {  # the kubelet sets these for the whole machine, unless they have its values
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def missing() -> str:
    """Why this machine cannot do it, in one line; empty if it can."""
    if platform.system() != "Linux":
        return "namespaces need Linux"
    if os.geteuid() != 0:
        return "namespaces and mounts need root"
    if absent := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"not on PATH: {', '.join(absent)}"
    with tempfile.TemporaryDirectory() as scratch:
        tried = subprocess.run(_isolated(scratch, "true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"no namespaces: {' '.join(tried.stderr.split())[-200:]}"
    try:
        _make_cgroup(f"{_CGROUP}probe-{os.getpid()}")
        _remove_cgroups()
    except OSError as error:
        return f"no control groups: {error}"
    return ""


def is_inside() -> bool:
    return INSIDE in os.environ


def make_cgroup(name: str) -> str:
    """A control group below that of the isolated command: its path in each hierarchy."""
    path = f"{os.environ[INSIDE]}/{name}"
    _make_cgroup(path)
    return f"/{path}"


def processes_files(path: str) -> list[Path]:
    """What names the processes in a control group, and in those below it, in any hierarchy."""
    return [file for root in _cgroup_roots() for file in (root / path.lstrip("/")).rglob("cgroup.procs")]


def run(command: Sequence[str]) -> int:
    """The command's exit status; 128 and the signal's number if it was interrupted."""
    _remove_cgroups()
    cgroup = f"{_CGROUP}{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="seedquota-machine-", ignore_cleanup_errors=True) as scratch:
        _make_cgroup(cgroup)
        group = ProcessGroup(remove=Path(scratch))
        try:
            child = group.spawn(_isolated(scratch, *command), log=None, env={**os.environ, INSIDE: cgroup})
            return _wait(child, group)
        finally:
            group.close()  # with `unshare` ends the first process inside, and so all of them
            _remove_cgroups()


def _isolated(scratch: str, *command: str) -> list[str]:
    namespaces = ("--net", "--mount", "--uts", "--ipc", "--pid")
    inside = [sys.executable, "-m", "devcluster.isolation", "--inside", scratch, *command]
    return ["unshare", *namespaces, "--fork", "--kill-child", "--mount-proc", *inside]


def _wait(child: subprocess.Popen[bytes], group: ProcessGroup) -> int:
    """An interrupt is passed on, and the command gets time to end in good order."""
    ended_by = 0

    def interrupted(number: int, _frame: object) -> None:
        nonlocal ended_by
        ended_by = ended_by or number
        group.send_signal(signal.SIGINT)
        signal.setitimer(signal.ITIMER_REAL, _END_SECONDS)

    def late(_number: int, _frame: object) -> None:
        child.kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    signal.signal(signal.SIGALRM, late)
    status = child.wait()
    return 128 + ended_by if ended_by else status


def _cgroup_roots() -> list[Path]:
    """Of each hierarchy. With version 2 there is one."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _make_cgroup(name: str) -> None:
    for root in _cgroup_roots():
        (root / name).mkdir(exist_ok=True)


def _remove_cgroups() -> None:
    """Those without a process in them: another run's stay."""
    for root in _cgroup_roots():
        for top in root.glob(f"{_CGROUP}*"):
            deadline = time.monotonic() + 5
            while top.exists() and not _removed(top) and time.monotonic() < deadline and _is_of_nobody(top):
                time.sleep(0.05)


def _is_of_nobody(top: Path) -> bool:
    owner = top.name.rpartition("-")[2]
    return owner == str(os.getpid()) or not Path(f"/proc/{owner}").exists()


def _removed(top: Path) -> bool:
    if not _is_of_nobody(top):
        return False
    below = [Path(found) for found, _, _ in os.walk(top, topdown=False)]
    try:
        for path in below:
            path.rmdir()
    except OSError:  # a process is still ending
        return False
    return True


def _networks() -> Iterator[str]:
    """Commands that connect the machines: a bridge on the first, to which the others have a cable."""
    yield "mount -t tmpfs tmpfs /run"
    yield "ip link add machines type bridge"
    for machine in _MACHINES:
        inside = "ip" if machine is FIRST else f"ip -netns {machine.name}"
        if machine is not FIRST:
            yield f"ip netns add {machine.name}"
            yield f"ip link add {machine.name} type veth peer name machines netns {machine.name}"
            yield f"ip link set {machine.name} master machines up"
        yield f"{inside} link set lo up"
        yield f"{inside} address add {machine.address}/24 dev machines"
        yield f"{inside} link set machines up"
        # A kubelet wants a default route, too.
        yield f"{inside} route add default via {(SECOND if machine is FIRST else FIRST).address}"
        for other in _MACHINES:
            if other is not machine:
                yield f"{inside} route add {other.pods} via {other.address}"


def _inside(scratch: Path, command: Sequence[str]) -> int:
    """The first process: it starts the command and waits for whatever ends. When it ends, the kernel ends the rest."""
    for line in _networks():
        subprocess.run(line.split(), check=True)
    upper, work = scratch / "var", scratch / "work"
    upper.mkdir()
    work.mkdir()
    options = f"lowerdir=/var,upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, "/var"], check=True)
    for name, value in _KUBELETS_SYSCTLS.items():
        if (real := Path("/proc/sys", name)).exists():
            file = scratch / name.replace("/", "-")
            file.write_text(value)
            subprocess.run(["mount", "--bind", file, real], check=True)
    for machine in _MACHINES:
        forward = machine.inside("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        subprocess.run(forward, check=True)
    temporary = scratch / "tmp"
    temporary.mkdir()
    child = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)})
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        ended, status = os.wait()
        if ended == child.pid:
            return os.waitstatus_to_exitcode(status) % 256


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--inside"]:
        return _inside(Path(arguments[1]), arguments[2:])
    if why := missing():
        print(f"devcluster: cannot run: {why}", file=sys.stderr)
        return 3
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
