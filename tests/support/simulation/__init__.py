"""Worlds made from seeds: one frame, and two kinds of world in it, groups and long polling."""
