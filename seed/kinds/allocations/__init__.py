"""Allocations: objects of the catalogue of servers, GPUs and the like, on this seed."""
