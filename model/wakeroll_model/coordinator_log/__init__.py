"""What Kafka's group coordinator writes into `__consumer_offsets`, read without I/O: bytes become structs."""
