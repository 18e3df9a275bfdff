"""Prometheus metrics of each process, and the HTTP server that exposes it."""
