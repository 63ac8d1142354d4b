"""Until when the chaos looks whether all has settled."""

from __future__ import annotations

from types import SimpleNamespace

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
    monkeypatch.setattr(settle, "_LONGER", 0.0)
    assert (await settle.settled(None, 0.0))[1] == ["cannot look: TimeoutError: "]


async def test_what_still_changes_is_waited_for_and_what_stays_wrong_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = [0.0], [["a", "b"], ["b", "a"], ["b"], ["c"], ["c"], ["c"], ["c"]]

    async def differences(_place: object) -> list[str]:
        clock[0] += 1.0  # a look takes a second
        return said.pop(0) if said else [f"changes at {clock[0]}"]

    monkeypatch.setattr(settle, "differences", differences)
    monkeypatch.setattr(settle, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(settle, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert await settle.settled(None, 2.5) == (7.0, ["c"])
    assert await settle.settled(None, 2.5) == (settle._LONGER + 3.0, ["changes at 130.0"])
