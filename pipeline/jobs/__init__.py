"""The two streaming queries, each a sentence of sources, operators and sinks."""
