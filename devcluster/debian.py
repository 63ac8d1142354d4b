"""Programs from Debian's packages, unpacked into the cache. Nothing is installed; only apt's lists must be there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from devcluster.binaries import BuildError

_TOOLS = ("apt-get", "dpkg-deb")
_TIMEOUT_SECONDS = 120.0


def missing_tools() -> list[str]:
    return [tool for tool in _TOOLS if shutil.which(tool) is None]


def unpack(packages: Sequence[str], target: Path, usable: Callable[[], bool]) -> None:
    """Fetches the packages and unpacks them into `target`, whole or not at all. Raises BuildError.

    `usable` says whether what is at the target can be used: another process may have been first.
    """
    part = target.with_name(f"{target.name}-{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        _run(["apt-get", "download", *packages], part)
        for package in part.glob("*.deb"):
            _run(["dpkg-deb", "-x", package.name, "."], part)
            package.unlink()
        try:
            part.rename(target)
        except OSError:  # another process was first, or an unusable one is there
            if not usable():
                shutil.rmtree(target, ignore_errors=True)
                part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def library_path(root: Path) -> Path | None:
    """Where the libraries of what was unpacked are."""
    return next(iter(root.glob("usr/lib/*-linux-*")), None)


def _run(command: Sequence[str], directory: Path) -> None:
    try:
        subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{' '.join(command)}: {error.stderr.strip()[-500:]}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{' '.join(command)}: {error}") from None
