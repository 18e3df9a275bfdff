"""Logins of the page: users, sessions, trusted proxies, and tokens of forms."""
