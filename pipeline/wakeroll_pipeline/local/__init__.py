"""The whole system on one machine, for the demo and for tests: broker, observer, jobs and consumers."""
