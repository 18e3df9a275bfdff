"""Prometheus metrics: what each process exposes, and the HTTP server that exposes it."""
