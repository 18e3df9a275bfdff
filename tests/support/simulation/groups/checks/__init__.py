"""The checkers that judge a world of groups."""
