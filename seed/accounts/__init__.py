"""The account of one quota on this seed: its reconciliation, counts, capacity requests and reports."""
