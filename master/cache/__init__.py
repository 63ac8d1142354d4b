"""What the master's own cluster has, as watch caches."""
