"""Serving HTTP: parser, server, certificates that are renewed, the health port; and how programs start and end."""
