"""What happens to records between a source and a sink."""
