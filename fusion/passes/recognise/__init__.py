"""Which ops together are a lookup."""
