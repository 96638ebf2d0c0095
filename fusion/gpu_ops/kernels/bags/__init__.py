"""The kernel that combines rows into bags."""
