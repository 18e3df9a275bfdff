"""Last wills: when the kernel says that a member's process has ended, a small process tells the coordinator for it."""
