"""Rows that belong to keys: the index that says which, and gathering them."""
