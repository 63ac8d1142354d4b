"""Asking clouds how big their machine types are, and remembering it. What to ask is in seed/providers."""
