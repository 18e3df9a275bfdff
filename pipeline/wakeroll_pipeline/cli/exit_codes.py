"""The exit codes of commands that read the tables, for scripts and CI."""

HOLDS = 0
"""Every rule holds, or every decision is the same; the command has answered."""
BROKEN = 1
"""A rule is broken or a decision differs; for other commands, any failure without a code of its own."""
WRONG_USE = 2
"""An argument, a setting or a missing package; a retry does not help."""
NOT_CHECKED = 3
"""No answer about the tables: a file is missing or damaged, a right is missing, or a table was replaced by another
one."""
