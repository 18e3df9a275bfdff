"""Last wills: when a member's process has ended, a small helper process commits and unregisters for it."""
