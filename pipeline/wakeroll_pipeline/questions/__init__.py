"""Answers from the ledger: explain, replay, data quality, marts."""
