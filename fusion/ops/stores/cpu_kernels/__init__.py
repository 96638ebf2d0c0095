"""Rows of tables that are kept in memory, as many as fit: the cache of a table store."""
