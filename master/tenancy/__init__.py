"""Projects, organizations, and the quotas that they get by default."""
