"""Machines of user clusters, and the objects that make them."""
