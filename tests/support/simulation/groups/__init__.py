"""Worlds of consumer groups."""
