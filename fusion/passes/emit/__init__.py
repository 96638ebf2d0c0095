"""Adds the ops that lookups become."""
