"""Status of Seeds, Projects and Organizations, and the master's metrics."""
