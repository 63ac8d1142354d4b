"""`python -m tests.e2e`: gets what a real node needs, and runs these tests on what looks like a machine of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from devcluster import binaries, docker, isolation, node
from devcluster.binaries import BuildError


def main(chosen: Sequence[str]) -> int:
    """`chosen`: parts of the files' names; all files where it is empty."""
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    if chosen:
        files = [file for file in files if any(part in file.stem for part in chosen)]
    if not files:
        print(f"e2e: no file is named like {' or '.join(chosen)}", file=sys.stderr)
        return 2
    why = isolation.missing()
    if not why:
        try:
            asyncio.run(_ensure())
        except BuildError as error:
            why = " ".join(str(error).split())
    if why:
        print(f"e2e: skipped: {why}")
        return 0
    # One file after the other, each on a new machine.
    for file in files:
        status = isolation.run([sys.executable, "-m", "pytest", "-q", "-rs", "-s", str(file)])
        if status != 0:
            return status
    return 0


async def _ensure() -> None:
    await node.ensure()
    try:
        await docker.ensure()
    except BuildError as error:
        print(f"e2e: no containers: {' '.join(str(error).split())}")
    await binaries.ensure(["helm", "kubectl"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
