"""The release before this one, out of the repository's history: its programs and its charts."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from pathlib import Path

COMMIT = "538498565f22c3fade07b90e7aaec98400f9b844"
"""Of the release before this one. Whoever releases changes it: see CONTRIBUTING.md."""

_ROOT = Path(__file__).parent.parent


def missing() -> str:
    """Why the last release cannot be run here, in one line; empty if it can."""
    try:
        found = _git("cat-file", "-e", f"{COMMIT}^{{commit}}")
    except FileNotFoundError:
        return f"the last release ({COMMIT[:7]}) is taken from git, which is not on PATH"
    if found.returncode == 0:
        return ""
    return f"the last release ({COMMIT[:7]}) is not in this clone: `git fetch --unshallow` brings it"


def unpack(target: Path) -> str:
    """Writes its files into the directory, which is made. Its version, which its programs then report as theirs."""
    archive = _git("archive", "--format=tar", COMMIT)
    archive.check_returncode()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as content:
        content.extractall(target, filter="data")
    found = re.search(r'^version = "(.+)"$', (target / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    metadata = target / f"seedquota-{found[1]}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: seedquota\nVersion: {found[1]}\n")
    return found[1]


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, check=False)
