"""Whole systems for tests: a broker with Spark jobs, processes of an application, or a coordinator without Spark."""
