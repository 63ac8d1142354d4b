"""What the charts share, and each chart's copy of it: `python -m devcluster.charts` writes the copies.

They are files, not links: archives that Flux makes of a repository have no links.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from devcluster.objects import CHARTS

CRDS, MASTER, SEED = "seedquota-crds", "seedquota-master", "seedquota-seed"
NAMES = (CRDS, MASTER, SEED)

_OF_DEFINITIONS = ("_common.tpl", "_notes.tpl")  # of charts/common: what the chart of the definitions needs


def copies() -> Iterator[tuple[Path, Path]]:
    """Each source in charts/common, charts/crds or charts/rbac with a copy of it."""
    for chart in NAMES:
        roles = "" if chart == CRDS else (CHARTS / chart / "templates" / "rbac.yaml").read_text()
        for source in sorted((CHARTS / "common").iterdir()):
            if chart != CRDS or source.name in _OF_DEFINITIONS:
                yield source, CHARTS / chart / "templates" / source.name
        for source in sorted((CHARTS / "crds").iterdir()):
            yield source, CHARTS / chart / "files" / "crds" / source.name
        for source in sorted((CHARTS / "rbac").iterdir()):
            if f'"{source.stem}"' in roles:
                yield source, CHARTS / chart / "files" / "rbac" / source.name


def main() -> None:
    for chart in NAMES:
        for directory in ("crds", "rbac"):
            shutil.rmtree(CHARTS / chart / "files" / directory, ignore_errors=True)
    for source, copy in copies():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)


if __name__ == "__main__":
    main()
