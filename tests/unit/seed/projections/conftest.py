from __future__ import annotations

import pytest

from seed.projections import copies


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "EVERY", 0.01)
    monkeypatch.setattr(copies, "RETRY", (0.01, 0.02))
