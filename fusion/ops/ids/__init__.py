"""Ops that make ids of strings and numbers."""
