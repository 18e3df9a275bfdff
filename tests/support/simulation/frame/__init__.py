"""What worlds of both kinds have in common."""
