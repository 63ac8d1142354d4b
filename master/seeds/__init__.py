"""Connections to seeds, and the copies that are kept there."""
