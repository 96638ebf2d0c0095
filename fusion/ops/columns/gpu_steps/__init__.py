"""Sequences of launches."""
