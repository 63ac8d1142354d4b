"""What is installed: the wheel has the programs and nothing else, and the programs' lock is all that they need."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
PRODUCT = ("cli", "common", "master", "seed")
LOCK, DEVELOPMENT = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(lock: Path) -> dict[str, str]:
    return {canonical(name): version for name, version in PINNED.findall(lock.read_text())}


def locked_files() -> Iterator[importlib.metadata.PackagePath]:
    """Of the packages in the programs' lock, as far as they are for this Python and system."""
    for name in pinned(LOCK):
        try:
            yield from importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    return Path(built)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the programs' lock names, and nothing else."""
    directory = tmp_path_factory.mktemp("locked")
    for file in locked_files():
        top = file.parts[0]
        if top != ".." and top != "__pycache__" and not (directory / top).exists():
            (directory / top).symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / top)
    return directory


def test_the_wheel_has_the_programs_and_neither_devcluster_nor_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        metadata = next(content.read(name).decode() for name in names if name.endswith("/METADATA"))
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PRODUCT)
    others = [name for name in names if ".dist-info/" not in name and not name.endswith(".py")]
    assert others == ["cli/master-on-seed.yaml"]
    assert "pytest" not in metadata and "Provides-Extra" not in metadata


def test_the_wheel_starts_with_nothing_but_what_the_lock_names(wheel: Path, locked: Path) -> None:
    """Every module is imported and every command is run, without site-packages (-S) and the environment (-I)."""
    with zipfile.ZipFile(wheel) as content:
        (entries,) = (name for name in content.namelist() if name.endswith("/entry_points.txt"))
        commands = dict(re.findall(r"^(\S+) = (\S+):main$", content.read(entries).decode(), re.MULTILINE))
    assert commands.keys() >= {"seedquota-master", "seedquota-seed", "seedquota"}
    code = f"""
import importlib, pkgutil, sys
sys.path[:0] = {[str(wheel), str(locked)]!r}
for package in {PRODUCT!r}:
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        importlib.import_module(found.name)
for command, module in {commands!r}.items():
    sys.argv = [command, "--version"]
    try:
        importlib.import_module(module).main()
    except SystemExit as ended:
        assert not ended.code, command
"""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", code], capture_output=True, text=True, check=False, cwd=locked
    )
    assert ran.returncode == 0, ran.stderr
    assert len(re.findall(r"^seedquota", ran.stdout, re.MULTILINE)) == len(commands)


def test_the_wheel_has_the_rights_of_the_master_on_a_seed_as_the_charts_have_them(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        assert (
            content.read("cli/master-on-seed.yaml") == (ROOT / "charts" / "rbac" / "master-on-seed.yaml").read_bytes()
        )
    code = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); from cli.seeds import rights; print(len(rights.objects('n')))"
    )
    ran = subprocess.run([sys.executable, "-I", "-B", "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "5", ran.stderr


def test_the_locks_agree_are_hashed_and_name_no_registry() -> None:
    programs, development = pinned(LOCK), pinned(DEVELOPMENT)
    assert programs.items() <= development.items()
    assert not programs.keys() & {"pytest", "mypy", "ruff", "hatchling", "moto", "hypothesis"}
    for lock in (LOCK, DEVELOPMENT):
        text = lock.read_text()
        assert "://" not in text and "--index" not in text
        assert all("--hash=sha256:" in entry for entry in re.split(r"\n(?=[A-Za-z])", text.strip()))
    assert re.search(r"^UV := uv==\d+(\.\d+)+$", (ROOT / "Makefile").read_text(), re.MULTILINE)
