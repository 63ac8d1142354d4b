"""Clusters themselves as what a quota limits: its resource `clusters`."""
