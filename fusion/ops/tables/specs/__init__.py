"""The ops."""
