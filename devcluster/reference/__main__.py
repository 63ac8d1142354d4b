"""`python -m devcluster.reference`"""

from __future__ import annotations

from devcluster.objects import CHARTS
from devcluster.reference.charts import readmes
from devcluster.reference.pages import DIRECTORY, MADE


def main() -> None:
    for name, made in MADE.items():
        (DIRECTORY / name).write_text(made())
    for name, text in readmes().items():
        (CHARTS / name / "README.md").write_text(text)


if __name__ == "__main__":
    main()
