"""User clusters, counted by themselves."""
