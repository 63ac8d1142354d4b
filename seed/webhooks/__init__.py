"""What API servers ask, and how it is answered."""
