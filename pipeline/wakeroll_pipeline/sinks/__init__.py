"""Sinks of the streaming queries: Delta tables and Kafka topics."""
