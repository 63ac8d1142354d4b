"""What the parts of the seed speak of: quotas, whom they count, and how sources and objects are named. Pure."""
