"""Kubernetes access: the client, and what controllers are made of."""
