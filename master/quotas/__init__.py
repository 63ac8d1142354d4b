"""One quota on the master: its ledger, its decisions, its status."""
