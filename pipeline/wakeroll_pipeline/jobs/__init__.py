"""The streaming queries, each composed of sources, operators and sinks."""
