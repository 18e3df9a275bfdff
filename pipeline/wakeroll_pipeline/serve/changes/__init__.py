"""Changes of groups through the page: forms, plans, and their execution."""
