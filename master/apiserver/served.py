"""What is known of one request, and what is logged and counted of it at its end."""

from __future__ import annotations

import logging
import re
import secrets
import time

from aiohttp import web

from common.server.access_reviews import User
from common.server.web_server import connection_of
from master.apiserver import metrics
from master.apiserver.call import Call
from master.apiserver.reading import LONGEST, field
from master.apiserver.route import Route

log = logging.getLogger(__name__)
audit = logging.getLogger("master.apiserver.audit")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Served:
    """One request, and what is known of it until it is logged. `writes`: the route that it writes by."""

    def __init__(self, request: web.Request) -> None:
        self.id = given if _REQUEST_ID.fullmatch(given := field(request, "X-Request-Id")) else secrets.token_hex(8)
        self.begun = time.monotonic()
        self.address = connection_of(request).address
        self.method = request.method if request.method in _METHODS else "other"
        self.path = request.raw_path.partition("?")[0]
        resource = request.match_info.route.resource
        self.template = resource.canonical if resource is not None else "none"
        self.user: User | None = None
        self.writes: Route | None = None
        self.call: Call | None = None
        self.lasts = False  # it is answered for as long as somebody listens
        self.status = 0  # nobody was there for the answer
        self.code = ""

    @property
    def caller(self) -> str:
        return f"user {self.user.username}" if self.user is not None else self.address

    def note(self) -> None:
        """The line of what is served to a user is always written: a user has so many a second. So is the audit line of
        a write. Other lines are limited by their caller."""
        seconds, user = time.monotonic() - self.begun, self.user
        metrics.REQUESTS.labels(self.method, self.template, str(self.status) if self.status else "none").inc()
        if not self.lasts:
            metrics.SECONDS.labels(self.template).observe(seconds)
        facts = {
            "request_id": self.id,
            "method": self.method,
            "route": self.template,
            "path": self.path[:LONGEST],
            "user": user.username[:LONGEST] if user is not None else "",
            "address": self.address,
            "status": self.status,
            "code": self.code,
        }
        served = user is not None and 0 < self.status < 400
        limited = {} if served else {"caller": self.caller[:LONGEST]}
        log.info("request", extra={**facts, **limited, "duration_ms": round(seconds * 1000, 3)})
        if self.writes is not None:
            audit.info("write", extra={**facts, "changes": self.call.changes if self.call is not None else None})
