"""The seed's program: webhook, ledger, counting, machine sizes."""
