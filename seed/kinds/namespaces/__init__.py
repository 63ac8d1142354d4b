"""Objects in namespaces, counted as Kubernetes' own ResourceQuota counts them."""
