"""One folder for each kind of what is counted. The engine around them knows none of them by name."""
