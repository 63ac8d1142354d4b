"""A seed of Kubermatic's community edition: its Clusters are user clusters without being declared."""
