"""Serving HTTPS: parser, server, certificates that are renewed."""
