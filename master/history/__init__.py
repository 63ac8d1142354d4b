"""What quotas used over the last thirty days: for plots, and for nothing that is decided."""
