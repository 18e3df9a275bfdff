"""The Delta tables: declarations, views, maintenance, retention, time travel, and the archived log."""
