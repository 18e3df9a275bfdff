"""Operators of the streaming queries: transformations between a source and a sink."""
