"""Worlds of long polling."""
