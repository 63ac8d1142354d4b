"""What krew installs as `kubectl seedquota`: `python -m devcluster.plugin VERSION URL` writes the archives, and the
manifest that names them below URL, into dist. The wheel is there already.

krew unpacks the archive for a machine and links one file of it (krew.sigs.k8s.io/docs/developer-guide/plugin-manifest),
so it has all but Python: the wheel, and the packages of requirements.lock for each version of Python, by their hashes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from devcluster.images import LOCK, ROOT

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = {
    ("linux", "amd64"): ("manylinux2014_x86_64", "manylinux_2_28_x86_64"),
    ("linux", "arm64"): ("manylinux2014_aarch64", "manylinux_2_28_aarch64"),
    ("darwin", "arm64"): ("macosx_11_0_arm64",),
}
"""By what pip calls them. cryptography has no wheel for older Macs."""

BIN = "kubectl-seedquota"
_ANY = "any"  # of all Pythons
_TIME = 315532800  # 1980, as everything else that is built here: the same content gives the same archive

_LAUNCHER = f"""\
#!/usr/bin/env python3
import os
import sys

here = os.path.dirname(os.path.realpath(__file__))
own = os.path.join(here, "lib", "%d.%d" % sys.version_info[:2])
if not os.path.isdir(own):
    sys.exit("kubectl seedquota needs python3 of version {PYTHONS[0]} to {PYTHONS[-1]}; this one is " + sys.version)
sys.path[:1] = [os.path.join(here, "lib", "{_ANY}"), own]

from cli.__main__ import main

main()
"""


def archive(product: Path, packages: Mapping[str, Iterable[Path]]) -> bytes:
    """`packages`: wheels by version of Python. Those for all of them are there once."""
    found: dict[str, bytes] = {BIN: _LAUNCHER.encode(), "LICENSE": (ROOT / "LICENSE").read_bytes()}
    found |= _unpacked(product, _ANY)
    for python, wheels in packages.items():
        found[f"lib/{python}/README"] = b"Packages for this version of Python.\n"
        for wheel in wheels:
            found |= _unpacked(
                wheel, _ANY if wheel.name.endswith("-none-any.whl") or "-abi3-" in wheel.name else python
            )
    unpacked = io.BytesIO()
    with tarfile.open(fileobj=unpacked, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in sorted(found.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), _TIME, 0o755 if name == BIN else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(unpacked.getvalue(), mtime=_TIME)


def manifest(version: str, url: str, archives: Mapping[tuple[str, str], bytes]) -> dict[str, object]:
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "seedquota"},
        "spec": {
            "version": f"v{version}",
            "homepage": "https://seedquota.io",
            "shortDescription": "Show and set quotas that span clusters",
            "description": "Shows what SeedQuota's quotas limit, what is used, what would fit, and why a request was\n"
            "refused. It uses your kubeconfig and your rights.\n",
            "caveats": f"It needs python3 in the PATH, of a version from {PYTHONS[0]} to {PYTHONS[-1]}, and on Linux "
            "glibc.\n",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": system, "arch": machine}},
                    "uri": f"{url}/{_named(system, machine)}",
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "bin": BIN,
                }
                for (system, machine), content in archives.items()
            ],
        },
    }


def _named(system: str, machine: str) -> str:
    return f"{BIN}-{system}-{machine}.tar.gz"


def _unpacked(wheel: Path, python: str) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as content:
        names = [name for name in content.namelist() if not name.endswith("/")]
        if odd := [name for name in names if ".data/" in name]:
            raise ValueError(f"{wheel.name} has what belongs elsewhere: {odd[0]}")
        return {f"lib/{python}/{name}": content.read(name) for name in names}


def _download(python: str, platforms: Iterable[str], directory: Path) -> list[Path]:
    """What the lock names. Its markers would be answered for the Python that runs pip, so all of it is taken."""
    directory.mkdir()
    lock = directory / LOCK.name
    lock.write_text(re.sub(r" ; [^\\\n]*", " ", LOCK.read_text()))
    chosen = [f"--platform={platform}" for platform in platforms]
    command = ["download", "--quiet", "--disable-pip-version-check", f"--dest={directory}", "--no-deps"]
    given = ["--only-binary=:all:", "--require-hashes", f"--python-version={python}", *chosen, f"--requirement={lock}"]
    subprocess.run([sys.executable, "-m", "pip", *command, *given], check=True)
    return sorted(directory.glob("*.whl"))


def main() -> None:
    version, url = sys.argv[1:]
    out = ROOT / "dist"
    product = out / f"seedquota-{version}-py3-none-any.whl"
    archives = {}
    for (system, machine), platforms in MACHINES.items():
        with tempfile.TemporaryDirectory() as scratch:
            packages = {each: _download(each, platforms, Path(scratch) / each) for each in PYTHONS}
            archives[system, machine] = archive(product, packages)
        (out / _named(system, machine)).write_bytes(archives[system, machine])
    (out / "seedquota.yaml").write_text(yaml.safe_dump(manifest(version, url, archives), sort_keys=False))


if __name__ == "__main__":
    main()
