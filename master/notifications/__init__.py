"""Messages to receivers that tenants choose, about what begins and ends at their quotas."""
