"""The product's image and a sandbox image as archives that container runtimes import, made without a registry.

The product's is made as `Containerfile` makes it, but of this machine's Python, by the same `image/rootfs.py`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatchling.builders.wheel import WheelBuilder

from devcluster.binaries import cache_directory

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
PYTHON = Path(sys.base_prefix) / "bin" / "python3"

_ROOTFS = ROOT / "image" / "rootfs.py"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(lock: Path) -> dict[str, str]:
    return {canonical(name): version for name, version in _PINNED.findall(lock.read_text())}


def installed() -> dict[str, str]:
    """Versions of the packages in the programs' lock, as far as they are for this Python and system. Where the lock is
    newer than the environment, a package may be missing."""
    found = {}
    for name in pinned(LOCK):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def locked_files() -> Iterator[importlib.metadata.PackagePath]:
    for name in installed():
        yield from importlib.metadata.files(name) or []


def add_dependencies(root: Path) -> None:
    packages = _packages(root)
    for file in locked_files():
        if file.parts[0] != ".." and file.suffix != ".pyc":
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), packages / file)


def add_product(root: Path, source: Path = ROOT) -> None:
    """The programs of that source, and their commands as pip writes them."""
    packages = _packages(root)
    with tempfile.TemporaryDirectory() as directory:
        (wheel,) = WheelBuilder(str(source)).build(directory=directory, versions=["standard"])
        shutil.unpack_archive(wheel, packages, "zip")
    (entries,) = packages.glob("seedquota-*.dist-info/entry_points.txt")
    commands = root / "usr/local/bin"
    commands.mkdir(parents=True, exist_ok=True)
    for name, module in re.findall(r"^(\S+) = (\S+):main$", entries.read_text(), re.MULTILINE):
        command = commands / name
        command.write_text(f"#!{PYTHON}\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        command.chmod(0o755)


def product(target: Path, tag: str, source: Path = ROOT) -> None:
    """Writes the archive of the product's image. What is below the programs is this source's, and kept in the cache."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        add_product(root, source)
        _make(root, "compile_all(root); settle(root)")
        layer = root.with_suffix(".tar")
        try:
            _layer(root, layer)
            _archive(target, tag, [_base(), layer], configuration((source / "Containerfile").read_text()))
        finally:
            layer.unlink(missing_ok=True)


def sandbox(target: Path, tag: str, pause: Path) -> None:
    """Writes the archive of an image with one static program that waits: it holds a pod's namespaces."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "root")
        root.mkdir()
        shutil.copy2(pause, root / "pause")
        layer = Path(directory, "layer.tar")
        _layer(root, layer)
        _archive(target, tag, [layer], {"Entrypoint": ["/pause"], "User": "65535:65535"})


def program(target: Path, tag: str, executable: Path, libraries: Path | None) -> None:
    """Writes the archive of an image with a program of this machine, at its path, and what it loads.

    `libraries`: where else than in the system's directories these are.
    """
    environment = {} if libraries is None else {"LD_LIBRARY_PATH": str(libraries)}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "root")
        copied = root / executable.relative_to("/")
        copied.parent.mkdir(parents=True)
        shutil.copy2(executable, copied)
        _make(root, f"copy_libraries(root, pathlib.Path({str(executable)!r}))", environment)
        layer = Path(directory, "layer.tar")
        _layer(root, layer)
        environment_of_image = [f"{name}={value}" for name, value in environment.items()]
        _archive(target, tag, [layer], {"Entrypoint": [str(executable)], "Env": environment_of_image})


def _packages(root: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    path = subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    packages = root / Path(path).relative_to("/")
    packages.mkdir(parents=True, exist_ok=True)
    return packages


def _make(root: Path, code: str, environment: Mapping[str, str] = {}) -> None:
    """Runs a part of image/rootfs.py by the Python that goes into the image."""
    code = f"import sys, pathlib; from rootfs import *; root = pathlib.Path(sys.argv[1]); {code}"
    subprocess.run([PYTHON, "-B", "-c", code, root], check=True, env={**environment, "PYTHONPATH": str(_ROOTFS.parent)})


def base_key() -> str:
    """Another one where the layer would have other files."""
    environment = f"{PYTHON} {sys.version} {sorted(installed().items())}"
    return hashlib.sha256(LOCK.read_bytes() + _ROOTFS.read_bytes() + environment.encode()).hexdigest()[:12]


def _base() -> Path:
    """The layer with Python, its libraries and the locked packages."""
    kept = cache_directory() / f"image-base-{base_key()}.tar"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            add_dependencies(root)
            _make(root, "main(root)")
            part = kept.with_name(f"{kept.name}-{os.getpid()}.part")
            kept.parent.mkdir(parents=True, exist_ok=True)
            _layer(root, part)
            part.replace(kept)
    return kept


def _layer(root: Path, target: Path) -> None:
    def as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        if member.isdir():
            member.mode = 0o755
        return member

    with tarfile.open(target, "w") as tar:
        for path in sorted(root.rglob("*")):
            tar.add(path, path.relative_to(root), recursive=False, filter=as_root)


def configuration(containerfile: str) -> dict[str, Any]:
    """What the last stage says about how the image runs."""
    text = containerfile.rpartition("FROM scratch")[2].replace("\\\n", " ")
    found = dict(re.findall(r"^(ENV|USER|CMD) (.+)$", text, re.MULTILINE))
    return {"Env": shlex.split(found["ENV"]), "User": found["USER"], "Cmd": json.loads(found["CMD"])}


def _archive(target: Path, tag: str, layers: Sequence[Path], configuration: Mapping[str, object]) -> None:
    """In the format of `docker save`."""
    digests = [_digest(layer) for layer in layers]
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": configuration,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    members = [f"{digest}/layer.tar" for digest in digests]
    manifest = json.dumps([{"Config": name, "RepoTags": [tag], "Layers": members}]).encode()
    with tarfile.open(target, "w") as tar:
        for member, layer in zip(members, layers, strict=True):
            tar.add(layer, member)
        for member, content in ((name, text), ("manifest.json", manifest)):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
