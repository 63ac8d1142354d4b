"""What is installed: the wheel has the programs and nothing else, and the programs' lock is all that they need."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder

from devcluster import plugin
from devcluster.images import LOCK, ROOT, locked_files, pinned

PRODUCT = ("cli", "common", "master", "seed")
DEVELOPMENT = ROOT / "requirements-dev.lock"


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
    of_page = [name for name in others if name.startswith(("master/page/templates/", "master/page/static/"))]
    assert all(name.endswith(".yaml") for name in others if name not in of_page)
    for needed in ("templates/base.html", "static/page.css", "static/vendor/htmx.min.js", "static/vendor/LICENSE-htmx"):
        assert f"master/page/{needed}" in of_page
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


def test_the_wheel_can_be_installed_and_its_commands_run(wheel: Path, locked: Path, tmp_path: Path) -> None:
    """As pipx does it, but with the packages of the lock instead of a registry's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    python = tmp_path / "bin" / "python"
    (site,) = (tmp_path / "lib").glob("python3.*/site-packages")
    (site / "locked.pth").write_text(f"{locked}\n")
    pip = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", f"--python={python}"]
    install = [*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run(install, check=True)
    checked = subprocess.run([*pip, "check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    for command in ("seedquota", "kubectl-seedquota"):
        ran = subprocess.run([tmp_path / "bin" / command, "--help"], capture_output=True, text=True, check=True, env={})
        assert "seedquota doctor" in ran.stdout
    complete = [tmp_path / "bin" / "kubectl_complete-seedquota", "doc"]
    assert "doctor" in subprocess.run(complete, capture_output=True, text=True, check=True, env={}).stdout


def test_what_krew_installs_runs_by_its_link_and_has_the_sum_that_the_manifest_says(
    wheel: Path, locked: Path, tmp_path: Path
) -> None:
    """The packages come from the lock's directory here; a release downloads them."""
    python = ".".join(map(str, sys.version_info[:2]))
    packed = plugin.archive(wheel, {python: []})
    assert packed == plugin.archive(wheel, {python: []}), "the same content gives the same archive"
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(tmp_path / "store", filter="data")
    linked = tmp_path / plugin.BIN
    linked.symlink_to(tmp_path / "store" / plugin.BIN)
    ran = subprocess.run(
        [sys.executable, "-S", "-B", str(linked), "--version"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(locked)},
    )
    assert ran.returncode == 0 and re.fullmatch(r"seedquota \d+\.\d+\.\d+\n", ran.stdout), ran
    (tmp_path / "store" / "lib" / python).rename(tmp_path / "other")
    ran = subprocess.run([sys.executable, str(linked)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and ran.stderr.startswith("kubectl seedquota needs python3 of version 3.11 to ")

    found: Any = plugin.manifest("1.2.3", "https://example.com/v1.2.3", {("linux", "amd64"): packed})
    assert found["spec"]["version"] == "v1.2.3"
    (platform,) = found["spec"]["platforms"]
    assert platform == {
        "selector": {"matchLabels": {"os": "linux", "arch": "amd64"}},
        "uri": "https://example.com/v1.2.3/kubectl-seedquota-linux-amd64.tar.gz",
        "sha256": hashlib.sha256(packed).hexdigest(),
        "bin": plugin.BIN,
    }


def test_the_wheel_has_rights_and_definitions_as_the_charts_have_them(wheel: Path) -> None:
    charts = ROOT / "charts"
    sources = {f"common/api/crds/{path.name}": path for path in (charts / "crds").iterdir()}
    sources["cli/master-on-seed.yaml"] = charts / "rbac" / "master-on-seed.yaml"
    with zipfile.ZipFile(wheel) as content:
        found = {name: content.read(name) for name in content.namelist() if name.endswith(".yaml")}
    assert found == {name: path.read_bytes() for name, path in sources.items()}
    code = f"""
import sys
sys.path.insert(0, {str(wheel)!r})
from cli.seeds import rights
from common.api.definitions import definition
from common.api.types import SEEDS
print(len(rights.objects("n")), definition(SEEDS, dict)["metadata"]["name"])
"""
    ran = subprocess.run([sys.executable, "-I", "-B", "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "5 seeds.seedquota.io", ran.stderr


def test_the_locks_agree_are_hashed_and_name_no_registry() -> None:
    programs, development = pinned(LOCK), pinned(DEVELOPMENT)
    assert programs.items() <= development.items()
    assert not programs.keys() & {"pytest", "mypy", "ruff", "hatchling", "moto", "hypothesis"}
    for lock in (LOCK, DEVELOPMENT):
        text = lock.read_text()
        assert "://" not in text and "--index" not in text
        assert all("--hash=sha256:" in entry for entry in re.split(r"\n(?=[A-Za-z])", text.strip()))
    assert re.search(r"^UV := uv==\d+(\.\d+)+$", (ROOT / "Makefile").read_text(), re.MULTILINE)
