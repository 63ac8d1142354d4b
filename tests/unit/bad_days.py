"""What goes wrong at clouds that take a token over REST: the answer, the message it makes, whether it is refused."""

from __future__ import annotations

import pytest

from tests.unit.fake_cloud import answering, hang

BAD_DAYS = [
    pytest.param(answering(401, "t0ken is wrong"), "refuses these credentials (401)", True, id="revoked"),
    pytest.param(answering(403, "t0ken is weak"), "refuses these credentials (403)", True, id="forbidden"),
    pytest.param(answering(429, Retry_After="60"), "answers too many requests (429)", False, id="throttled"),
    pytest.param(answering(500, "t0ken"), "answered 500", False, id="broken"),
    pytest.param(answering(503), "answered 503", False, id="away"),
    pytest.param(answering(404, "t0ken"), "answered 404", False, id="gone"),
    pytest.param(answering(302, Location="https://x/"), "answered 302: it moved elsewhere", True, id="moved"),
    pytest.param(answering(200, "t0ken"), "answers what cannot be read", False, id="garbage"),
    pytest.param(answering(200, '{"t0ken": 1}'), "answers what cannot be read", False, id="another shape"),
    pytest.param(hang, "did not answer within 0.5 s", False, id="slow"),
]
