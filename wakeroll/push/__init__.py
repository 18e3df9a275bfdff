"""Push consumption: a handler is called with batches of messages, several at a time."""
