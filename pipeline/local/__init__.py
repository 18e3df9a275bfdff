"""The whole system on one machine: broker, observer, jobs, consumers."""
