"""The live model: the state of all groups, followed in the control topics or read from the tables, without Spark."""
