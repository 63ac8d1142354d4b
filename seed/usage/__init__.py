"""What exists in each source, summed."""
