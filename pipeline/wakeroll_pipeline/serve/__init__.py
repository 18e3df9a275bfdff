"""The web page for operators, its JSON endpoints, and its metrics."""
