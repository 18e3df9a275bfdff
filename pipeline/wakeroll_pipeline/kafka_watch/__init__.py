"""The watch of Kafka's own consumer groups: their members, queues and offsets become events about groups here."""
