"""The seed as a source of Machines: Cluster API's, for which it is the management cluster."""
