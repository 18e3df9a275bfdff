"""Sleeping workers: processes that run only while their group has something to read."""
