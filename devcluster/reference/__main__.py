"""`python -m devcluster.reference`"""

from __future__ import annotations

from devcluster.objects import CHARTS
from devcluster.reference.charts import readmes
from devcluster.reference.pages import DIRECTORY, pages


def main() -> None:
    for name, text in pages().items():
        (DIRECTORY / name).write_text(text)
    for name, text in readmes().items():
        (CHARTS / name / "README.md").write_text(text)


if __name__ == "__main__":
    main()
