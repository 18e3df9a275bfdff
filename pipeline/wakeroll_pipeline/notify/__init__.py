"""Notifications: changes of verdicts, sent to webhooks."""
