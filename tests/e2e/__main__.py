"""`python -m tests.e2e`: gets what a real node needs, and runs these tests on what looks like a machine of its own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from devcluster import binaries, isolation, node
from devcluster.binaries import BuildError


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
    return isolation.run([sys.executable, "-m", "pytest", "-q", "-rs", *sys.argv[1:], str(Path(__file__).parent)])


async def _ensure() -> None:
    await node.ensure()
    await binaries.ensure(["helm", "kubectl"])


if __name__ == "__main__":
    sys.exit(main())
