"""A real Chromium for the tests: the one that is installed, else Debian's packages, unpacked into the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster import debian
from devcluster.binaries import BuildError, cache_directory

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

_INSTALLED = ("chromium-headless-shell", "chromium", "google-chrome", "google-chrome-stable")
_PACKAGES = ("chromium-headless-shell", "fonts-inter", "fonts-dejavu-core")
_PROGRAM = Path("usr/lib/chromium/chromium-headless-shell")
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<include ignore_missing="yes">{root}/etc/fonts/fonts.conf</include>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include>
<dir>{root}/usr/share/fonts</dir>
<cachedir>{root}/var/cache/fontconfig</cachedir>
</fontconfig>
"""


@dataclass(frozen=True)
class Chromium:
    """`environment` is what it needs beside that of this process."""

    program: Path
    environment: Mapping[str, str]


def ensure() -> Chromium:
    """Raises BuildError, which says what is missing."""
    chosen = os.environ.get("CHROMIUM")
    if found := next((path for name in ((chosen,) if chosen else _INSTALLED) if (path := shutil.which(name))), None):
        return Chromium(Path(found), {})
    if chosen:
        raise BuildError(f"CHROMIUM={chosen} is no program")
    if missing := debian.missing_tools():
        raise BuildError(f"no Chromium is installed, and without {', '.join(missing)} none can be unpacked")
    root = cache_directory() / "chromium"
    if not os.access(root / _PROGRAM, os.X_OK):
        root.parent.mkdir(parents=True, exist_ok=True)
        debian.unpack(_missing_packages(), root, lambda: os.access(root / _PROGRAM, os.X_OK))
    fonts = root / "fonts.conf"
    fonts.write_text(_FONTS.format(root=root))
    libraries = debian.library_path(root)
    paths = [libraries, libraries / "pulseaudio"] if libraries is not None else []
    environment = {"LD_LIBRARY_PATH": ":".join(map(str, paths)), "FONTCONFIG_FILE": str(fonts)}
    return Chromium(root / _PROGRAM, environment)


def _missing_packages() -> list[str]:
    """The packages, and of what they need all that is not installed."""
    command = ["apt-get", "--simulate", "install", "--no-install-recommends", *_PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{' '.join(command)}: {error.stderr.strip()[-500:]}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{' '.join(command)}: {error}") from None
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Inst ")]
