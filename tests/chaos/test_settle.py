"""Until when the chaos looks whether all has settled."""

from __future__ import annotations

import pytest

from tests.chaos import settle


async def test_an_api_server_that_does_not_answer_in_time_is_asked_again_and_what_it_says_then_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = [TimeoutError(), [], TimeoutError(), ["a leak"], TimeoutError()]

    async def differences(_place: object) -> list[str]:
        found = said.pop(0)
        if isinstance(found, TimeoutError):
            raise found
        return found

    monkeypatch.setattr(settle, "differences", differences)
    monkeypatch.setattr(settle, "_POLL_SECONDS", 0.0)
    assert (await settle.settled(None, 0.0))[1] == []
    assert (await settle.settled(None, 0.0))[1] == ["a leak"]
    monkeypatch.setattr(settle, "_LOOKED_WITHIN", 0.0)
    assert (await settle.settled(None, 0.0))[1] == ["cannot look: TimeoutError: "]
