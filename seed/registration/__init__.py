"""The webhook configurations that make clusters ask, and the proof that they do."""
