"""Metrics of the HTTP API. Labels are from what the routes are, never from what somebody sends."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

REQUESTS = Counter(
    "seedquota_api_requests_total",
    'Requests to the HTTP API, by the template of their route. Route "none": there is no such route, or it was refused '
    "before that was looked up.",
    ["method", "route", "status"],
)
SECONDS = Histogram(
    "seedquota_api_request_duration_seconds",
    "Time that requests to the HTTP API took.",
    ["route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20),
)
