"""What the leader runs, and the status of user clusters and of the seed."""
