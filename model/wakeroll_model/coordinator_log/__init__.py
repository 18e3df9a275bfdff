"""The records that Kafka's group coordinator writes into `__consumer_offsets`: bytes become structs, without I/O."""
