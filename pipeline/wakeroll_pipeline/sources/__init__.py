"""Sources of the streaming queries: Kafka topics."""
