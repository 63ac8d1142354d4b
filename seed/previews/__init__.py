"""What the agent tells the master for previews."""
