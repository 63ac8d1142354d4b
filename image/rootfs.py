"""Makes the image's file system out of the Python that runs this: the interpreter, the standard library, what is
installed under ROOT, and the shared libraries that these load. No shell, no package manager, nothing else.

    python rootfs.py ROOT
"""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

USER = 65532
NOT_NEEDED = {
    "__pycache__", "ensurepip", "idlelib", "lib2to3", "pip", "pydoc_data", "site-packages", "dist-packages",
    "test", "tests", "tkinter", "turtledemo", "venv",
}  # fmt: skip
NOT_LOADED = ("_tkinter.", "_curses", "_dbm.", "_gdbm.", "readline.", "_test", "_ctypes_test", "xx")
LOADED_BY_NAME = ("libgcc_s.so.1",)  # by glibc, when a thread ends
FILES = {
    "etc/passwd": f"seedquota:x:{USER}:{USER}::/:/nonexistent\n",
    "etc/group": f"seedquota:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
LOADER_CACHE = Path("/etc/ld.so.cache")  # where the loader finds what is not in its own directories
CERTIFICATES = "usr/share/seedquota/ca.pem"


def standard_library(root: Path) -> None:
    source = Path(sysconfig.get_path("stdlib"))

    def left_out(directory: str, names: list[str]) -> set[str]:
        top = Path(directory) == source
        return {
            name
            for name in names
            if name in NOT_NEEDED or name.startswith(NOT_LOADED) or (top and name.startswith("config-"))
        }

    shutil.copytree(source, root / source.relative_to("/"), ignore=left_out, dirs_exist_ok=True)


def interpreter(root: Path) -> Path:
    """Under the name that the commands' first lines have, which is this one's."""
    running = Path(sys.executable)
    target = root / running.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(running.resolve(), target)
    return target


def shared_objects(root: Path, first: Path) -> Iterator[Path]:
    yield first
    yield from (path for path in root.rglob("*.so*") if path.is_file() and not path.is_symlink())


def libraries(objects: Iterable[Path]) -> set[Path]:
    """What the loader finds for them on this system."""
    found: set[Path] = set()
    for path in objects:
        said = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
        for line in said.splitlines():
            words = line.replace("=>", " ").split()
            found.update(Path(word) for word in words if word.startswith("/"))
    return found


def also_loaded(known: set[Path]) -> set[Path]:
    directories = {path.parent for path in known}
    return {directory / name for directory in directories for name in LOADED_BY_NAME if (directory / name).exists()}


def copy_libraries(root: Path, first: Path) -> None:
    needed = libraries(shared_objects(root, first))
    needed |= also_loaded(needed)
    for path in sorted(needed | libraries(needed)):
        target = root / path.relative_to("/")
        if not path.is_relative_to(root) and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path.resolve(), target)
    if LOADER_CACHE.exists():
        (root / "etc").mkdir(exist_ok=True)
        shutil.copy2(LOADER_CACHE, root / "etc")


def copy_certificates(root: Path) -> None:
    """Of public authorities, by which clouds are known."""
    target = root / CERTIFICATES
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(next(root.rglob("certifi/cacert.pem")), target)


def compile_all(root: Path) -> None:
    """By the source's hash, unchecked: the same in each build, and nothing is written or compared at a start."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for path in sorted(root.rglob("*.py")):
        shown = "/" + str(path.relative_to(root))
        py_compile.compile(str(path), dfile=shown, quiet=1, invalidation_mode=mode)


def settle(root: Path) -> None:
    """Everybody may read, nobody may write, and each build has the same times."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    for path in [root, *sorted(root.rglob("*"))]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def main(root: Path) -> None:
    standard_library(root)
    first = interpreter(root)
    copy_libraries(root, first)
    copy_certificates(root)
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    compile_all(root)
    settle(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
