"""Which ops each lookup becomes."""
