"""The image's file system, made as `Containerfile` makes it but of this machine's Python and without a registry, runs
the programs as a user who may write nothing, and has no shell."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster import images
from devcluster.images import LOCK, PYTHON, ROOT, canonical, pinned
from tests.unit.test_supply_chain import PRODUCT

IMAGE = ROOT / "image"
CONTAINERFILE = (ROOT / "Containerfile").read_text()
USER = 65532


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("image")
    images.add_dependencies(directory / "root")
    images.add_product(directory / "root")
    # Compiling takes much of the time, and changes nothing that is seen here.
    code = (
        "import sys, pathlib, rootfs; rootfs.compile_all = lambda _root: None; rootfs.main(pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([PYTHON, "-B", "-c", code, directory / "root"], check=True, env={"PYTHONPATH": str(IMAGE)})
    return directory / "root"


def test_the_programs_run_without_a_shell_as_a_user_who_owns_nothing(root: Path) -> None:
    names = {path.name for path in root.rglob("*") if not path.is_dir() and os.access(path, os.X_OK)}
    assert not names & {"sh", "bash", "dash", "busybox", "apt", "dpkg", "pip", "pip3"}
    assert [path for path in root.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022] == []
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    for module in PRODUCT[2:]:
        code = f"import os, sys; assert os.getuid() == {USER}; sys.argv = ['x', '--version']; "
        code += f"from {module}.__main__ import main; main()"
        command = [
            shutil.which("chroot") or "chroot",
            f"--userspec={USER}:{USER}",
            root,
            PYTHON.with_name("python3"),
            "-B",
            "-c",
            code,
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env={})
        assert (ran.returncode, ran.stdout[:9]) == (0, "seedquota"), ran.stderr


def test_the_bill_of_materials_names_what_is_there_and_is_the_same_each_time(root: Path) -> None:
    bills = [subprocess.check_output([PYTHON, "-B", IMAGE / "sbom.py", root]) for _ in range(2)]
    assert bills[0] == bills[1]
    bill = json.loads(bills[0])
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "seedquota")
    named = {found["name"]: found["version"] for found in bill["components"]}
    assert named.pop("python") == ".".join(map(str, sys.version_info[:3]))
    installed = {canonical(path.name.split("-")[0]) for path in root.rglob("*.dist-info")} - {"seedquota"}
    assert named.keys() == installed
    assert named.items() <= pinned(LOCK).items()
    assert all(found["purl"].startswith("pkg:") for found in bill["components"])


def test_the_containerfile_pins_by_arguments_and_ends_with_nothing_but_the_programs() -> None:
    stages = re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE)
    assert stages == ["${BASE}", "scratch"]
    last = CONTAINERFILE.partition("FROM scratch")[2]
    assert re.search(rf"^USER {USER}:{USER}$", last, re.MULTILINE)
    assert "RUN" not in last and "--require-hashes" in CONTAINERFILE
    base = re.search(r"^ARG BASE=(\S+)$", CONTAINERFILE, re.MULTILINE)
    assert base is not None and "/" not in base[1], "no registry is named"
    assert re.fullmatch(r"[a-z]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}", base[1])
    assert 'org.opencontainers.image.base.name="${BASE}"' in last and "\nARG BASE\n" in last
