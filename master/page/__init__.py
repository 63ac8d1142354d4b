"""The web page of the master: rendered here, from the functions that answer the HTTP API, with the viewer's rights."""
