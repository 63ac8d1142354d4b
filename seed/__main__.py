"""`seedquota-seed`: the agent on each seed. Every replica answers admission; the one that leads counts."""

from __future__ import annotations

import sys

from common.runtime.flags import (
    parse,
)
from common.server import program
from seed import size_command
from seed.agent import serve
from seed.options import SeedOptions


def main() -> None:
    if sys.argv[1:2] == ["size"]:
        sys.exit(size_command.main(sys.argv[2:]))
    options = parse(SeedOptions, "seedquota-seed", __doc__ or "")
    sys.exit(program.run("seedquota-seed", options, lambda running: serve(running, options)))


if __name__ == "__main__":
    main()
