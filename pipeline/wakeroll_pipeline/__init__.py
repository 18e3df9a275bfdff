"""Spark wiring around `model`: sources, operators, sinks, jobs, the observer and the command line."""
