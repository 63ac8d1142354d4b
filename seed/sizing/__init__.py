"""A Machine's size: how it is found, and the sealed stamp that keeps it."""
