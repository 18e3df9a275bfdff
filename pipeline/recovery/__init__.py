"""What a coordinator starts with when its checkpoint, or part of its log, is gone."""
