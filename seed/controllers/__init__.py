"""What the leader does, and what people are told of user clusters and the seed."""
