"""`python -m tests.e2e`: gets what a real node needs, and runs these tests on what looks like a machine of its own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from devcluster import binaries, docker, isolation, node
from devcluster.binaries import BuildError

_NO_TESTS = 5  # pytest's exit status where -k chose none


def main() -> int:
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
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        status = isolation.run([sys.executable, "-m", "pytest", "-q", "-rs", "-s", str(file), *sys.argv[1:]])
        if status not in (0, _NO_TESTS):
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
    sys.exit(main())
