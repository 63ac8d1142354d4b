"""What a program needs to run: flags, logs, metrics, health, the event loop."""
