"""How much each seed is granted, and what is recalled. No I/O."""
