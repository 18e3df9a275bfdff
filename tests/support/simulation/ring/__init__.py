"""The simulation of the ring: the real public classes of the SDK on a Kafka in memory, under a seed's control."""
