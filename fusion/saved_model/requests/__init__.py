"""Signatures that are added to a model, computed by graphs over its variables and tables."""
