"""Histories of groups and queues: random ones for properties, and plain ones made step by step."""
