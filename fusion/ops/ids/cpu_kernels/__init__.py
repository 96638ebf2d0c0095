"""Hashes of texts, in memory."""
