"""The HTTP API: quotas for those who do not speak to a Kubernetes API server."""
