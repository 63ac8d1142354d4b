"""One quota on this seed: its account, what is counted, what is asked for, what is published."""
