"""Requests to an API server: transport, credentials, objects, errors."""
