"""Last wills: when a member's process has ended, a small other process commits and unregisters for it."""
