"""One request, from the object to the answer."""
