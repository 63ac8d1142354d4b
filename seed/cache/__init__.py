"""What this seed knows of quotas, projects, clusters and replicas."""
