"""What the diary of a storm has of an event of a watch."""

from __future__ import annotations

from tests.chaos.record import _entry


def test_an_error_of_an_api_server_is_noted_and_ends_no_diary() -> None:
    """Its object is a Status, whose `metadata` is empty and whose `status` is a word."""
    error = {"kind": "Status", "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410}
    assert "Expired" in _entry("quota", {"type": "ERROR", "object": error})


def test_a_quota_is_noted_with_its_conditions_in_short() -> None:
    conditions = [{"type": "Enforced", "status": "True", "reason": "Enforced", "message": "long"}]
    quota = {"metadata": {"name": "alpha"}, "status": {"conditions": conditions, "seeds": []}}
    entry = _entry("quota", {"type": "MODIFIED", "object": quota})
    assert '"conditions":["Enforced=True Enforced"]' in entry
    assert "seeds" not in entry
