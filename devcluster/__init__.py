"""Real Kubernetes API servers on this machine, for development, the demo and the tests."""
