"""Where a seed keeps its accounts, durably."""
