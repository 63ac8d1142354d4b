"""What people are told of seeds and tenants."""
