"""`python -m tests.e2e`: gets what these tests need, and runs each file on what looks like a machine of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from devcluster import binaries, chromium, docker, ingress, isolation, node, redis
from devcluster.binaries import BuildError


def main(chosen: Sequence[str]) -> int:
    """`chosen`: parts of the files' names; all files where it is empty."""
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    if chosen:
        files = [file for file in files if any(part in file.stem for part in chosen)]
    if not files:
        print(f"e2e: no file is named like {' or '.join(chosen)}", file=sys.stderr)
        return 2
    if why := isolation.missing():
        print(f"e2e: skipped: {why}")
        return 0
    # What cannot run is said first, so that the end tells how those went that can.
    lacking = {file: asyncio.run(_lacking(file)) for file in files}
    for file, why in lacking.items():
        if why:
            print(f"e2e: {file.name} skipped: {why}", flush=True)
    for file in (file for file, why in lacking.items() if not why):
        status = isolation.run([sys.executable, "-m", "pytest", "-q", "-rs", "-s", "--timeout=1800", str(file)])
        if status != 0:
            return status
    return 0


async def _lacking(file: Path) -> str:
    """Gets what the file's tests need. Why it cannot be had, in one line; empty where all is there."""
    try:
        if file.stem == "test_containers":
            await binaries.ensure(["etcd", "kube-apiserver"])
            await docker.ensure()
            await redis.ensure()
        else:
            await node.ensure()
            await binaries.ensure(["helm", "kubectl", "etcdctl", "etcdutl"])
            if file.stem == "test_ingress":
                await ingress.ensure()
                chromium.ensure()
    except BuildError as error:
        return " ".join(str(error).split())
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
