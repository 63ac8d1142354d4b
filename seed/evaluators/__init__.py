"""What an object costs."""
